#include "mounts/pump.h"

#include <errno.h>
#include <libxenvchan.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/file.h"

enum {
	RING = 131072, /* of each direction; the guest's memory */
	PART = 65536,
	PATIENCE = 60, /* seconds for the host to connect */
};

/* Bytes under way in one direction. */
struct part {
	uint8_t bytes[PART];
	size_t start;
	size_t length;
};

static struct libxenvchan *ring;
static struct part up, down; /* to the host, and from the host */

/* Each returns the bytes moved, or -1 after the end of its side. */

static ssize_t from_ring(void)
{
	int n = down.length ? 0 : libxenvchan_read(ring, down.bytes, PART);

	if (n > 0) {
		down.start = 0;
		down.length = (size_t)n;
	}
	return n;
}

static ssize_t to_ring(void)
{
	int n = up.length ? libxenvchan_write(ring, up.bytes + up.start, up.length) : 0;

	if (n > 0) {
		up.start += (size_t)n;
		up.length -= (size_t)n;
	}
	return n;
}

static ssize_t from_socket(int socket)
{
	ssize_t n;

	if (up.length)
		return 0;
	n = recv(socket, up.bytes, PART, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	up.start = 0;
	up.length = (size_t)n;
	return n ? n : -1;
}

static ssize_t to_socket(int socket)
{
	ssize_t n;

	if (!down.length)
		return 0;
	n = send(socket, down.bytes + down.start, down.length, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	down.start += (size_t)n;
	down.length -= (size_t)n;
	return n;
}

static bool wait_for_change(int socket)
{
	struct pollfd watched[] = {
		{ .fd = libxenvchan_fd_for_select(ring), .events = POLLIN },
		{ .fd = socket,
		  .events = (short)((up.length ? 0 : POLLIN) | (down.length ? POLLOUT : 0)) },
	};

	if (poll(watched, 2, -1) < 0)
		return errno == EINTR;
	if (watched[0].revents && libxenvchan_wait(ring) < 0)
		return false;
	if (libxenvchan_is_open(ring) == 1)
		alarm(0); /* the host has connected */
	return !(watched[1].revents & (POLLERR | POLLHUP | POLLNVAL));
}

static void copy(int socket)
{
	for (;;) {
		ssize_t moved[] = { from_ring(), to_socket(socket), from_socket(socket), to_ring() };
		bool idle = true;

		for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
			if (moved[i] < 0)
				return;
			idle = idle && moved[i] == 0;
		}
		if (idle && !wait_for_change(socket))
			return;
	}
}

int pump_run(const char *session, int socket, int ready, struct fault *fault)
{
	char path[64];

	if (path_format(path, sizeof(path), "data/share/%s", session) < 0)
		return fault_errno(fault, "serve vchan", session);
	ring = libxenvchan_server_init(NULL, 0, path, RING, RING);
	if (!ring)
		return fault_errno(fault, "serve vchan", path);
	ring->blocking = 0;
	close(ready);
	signal(SIGALRM, SIG_DFL);
	alarm(PATIENCE);
	copy(socket);
	libxenvchan_close(ring);
	_exit(EXIT_SUCCESS);
}
