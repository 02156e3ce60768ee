/* What carries the channel's bytes: a unix socket (fd:3) or a vchan ring.  One connection at most. */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct transport {
	/* Bytes moved; 0 would block (link_can_read or link_can_write follows); -1 the peer is gone. */
	ssize_t (*read)(uint8_t *bytes, size_t size);
	ssize_t (*write)(const uint8_t *bytes, size_t length);
	/* End the connection and wait for the next; nothing to do without one. */
	void (*hang_up)(void);
};

/* `channel` is XENPOD_CHANNEL.  NULL with a line on the console when it cannot be served. */
const struct transport *transport_open(const char *channel);

const struct transport *socket_open(int listening_fd);
const struct transport *vchan_open(void);

#endif
