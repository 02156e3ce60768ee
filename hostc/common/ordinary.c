#include "common/ordinary.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The same value as in daemonkit/host/children.py. */
static const char SCORE[] = "100";

void ordinary_process(void)
{
	char text[16] = "";
	int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return;
	if (read(fd, text, sizeof(text) - 1) > 0 && atoi(text) < atoi(SCORE))
		(void)!pwrite(fd, SCORE, strlen(SCORE), 0);
	close(fd);
}
