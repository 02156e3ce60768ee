#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <libxenvchan.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xenstore.h>

enum { PATIENCE = 60 }; /* seconds for the guest to serve */

/* Runs in a separate process: a watch starts a thread, and a process with threads cannot enter a user namespace. */
static _Noreturn void wait_for_node(const char *node)
{
	struct xs_handle *store = xs_open(0);
	unsigned int count, length;

	alarm(PATIENCE);
	if (!store || !xs_watch(store, node, "share"))
		_exit(EXIT_FAILURE);
	for (;;) {
		free(xs_read_watch(store, &count));
		if (xs_read(store, XBT_NULL, node, &length))
			_exit(EXIT_SUCCESS);
	}
}

static int wait_for_guest(const char *path, struct reason *reason)
{
	char node[256];
	pid_t pid;
	int status;

	/* The node that libxenvchan writes last. */
	snprintf(node, sizeof(node), "%s/event-channel", path);
	pid = fork();
	if (pid == 0)
		wait_for_node(node);
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return reason_errno(reason, "fork", "to wait for the guest");
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS)
		return 0;
	errno = WIFSIGNALED(status) ? ETIMEDOUT : EIO;
	return reason_errno(reason, "wait for the guest", node);
}

int link_open_vchan(struct link *link, int domain, const char *path, int most_order, struct reason *reason)
{
	if (wait_for_guest(path, reason) < 0)
		return -1;
	link->ring = libxenvchan_client_init(NULL, domain, path);
	if (!link->ring)
		return reason_errno(reason, "connect vchan", path);
	if (link->ring->read.order > most_order || link->ring->write.order > most_order) {
		libxenvchan_close(link->ring); /* unmaps the pages of its rings */
		link->ring = NULL;
		errno = EMSGSIZE;
		return reason_errno(reason, "the zone broke the protocol", "its rings are too large");
	}
	link->ring->blocking = 0;
	link->fd = libxenvchan_fd_for_select(link->ring);
	return 0;
}

int link_open_socket(struct link *link, int fd, struct reason *reason)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return reason_errno(reason, "fcntl", "socket");
	*link = (struct link){ fd, NULL };
	return 0;
}

/* Waits for a change; consumes the event of a vchan. */
static int change(struct link *link, short events)
{
	struct pollfd watched = { .fd = link->fd, .events = link->ring ? POLLIN : events };

	while (poll(&watched, 1, -1) < 0)
		if (errno != EINTR)
			return -1;
	return link->ring ? libxenvchan_wait(link->ring) : 0;
}

/* Bytes moved; 0: none now; -1: the other side is gone. */
static ssize_t some(const struct link *link, ssize_t n)
{
	if (link->ring || n > 0)
		return n;
	return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

int link_read(struct link *link, void *data, size_t size)
{
	uint8_t *at = data;

	while (size) {
		ssize_t n = some(link, link->ring ? libxenvchan_read(link->ring, at, size) : read(link->fd, at, size));

		if (n < 0 || (n == 0 && change(link, POLLIN) < 0))
			return -1;
		at += n;
		size -= (size_t)n;
	}
	return 0;
}

int link_write(struct link *link, const void *data, size_t size)
{
	const uint8_t *at = data;

	while (size) {
		ssize_t n = some(link,
				 link->ring ? libxenvchan_write(link->ring, at, size) : write(link->fd, at, size));

		if (n < 0 || (n == 0 && change(link, POLLOUT) < 0))
			return -1;
		at += n;
		size -= (size_t)n;
	}
	return 0;
}
