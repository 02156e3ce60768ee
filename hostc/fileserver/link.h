/* The bytes to and from the client: a vchan that the guest serves, or a connected socket. */
#ifndef FILESERVER_LINK_H
#define FILESERVER_LINK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/reason.h"

struct link {
	int fd; /* reports changes */
	struct libxenvchan *ring; /* NULL: fd is a socket */
};

/* Waits until the guest serves a vchan at `path` of xenstore, and connects to it.  A ring may have at most
 * 2^`most_order` bytes: the guest picks the size. */
int link_open_vchan(struct link *link, int domain, const char *path, int most_order, struct reason *reason);
int link_open_socket(struct link *link, int fd, struct reason *reason);
/* Move exactly `size` bytes, without a time limit.  -1: the other side is gone. */
int link_read(struct link *link, void *data, size_t size);
int link_write(struct link *link, const void *data, size_t size);

#endif
