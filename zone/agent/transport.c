#include "transport.h"

#include <string.h>

#include "file.h"
#include "say.h"

const struct transport *transport_open(const char *channel)
{
	uint64_t fd;

	if (strcmp(channel, "vchan") == 0)
		return vchan_open();
	if (strncmp(channel, "fd:", 3) == 0 && number_parse(channel + 3, 1023, &fd))
		return socket_open((int)fd);
	say("XENPOD_CHANNEL: %s: neither vchan nor fd:<number>", channel);
	return NULL;
}
