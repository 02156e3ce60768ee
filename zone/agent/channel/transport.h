/* The carrier of the channel's bytes: a unix socket or a vchan ring.  It has at most one connection. */
#ifndef CHANNEL_TRANSPORT_H
#define CHANNEL_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct transport {
	/* Return the bytes moved; 0: would block, and link_can_read or link_can_write follows; -1: the peer is gone. */
	ssize_t (*read)(uint8_t *bytes, size_t size);
	ssize_t (*write)(const uint8_t *bytes, size_t length);
	/* Ends the connection and waits for the next; no effect without a connection. */
	void (*hang_up)(void);
};

/* Both start to serve.  NULL with a log line. */
const struct transport *socket_open(int listening_fd);
const struct transport *vchan_open(void);

#endif
