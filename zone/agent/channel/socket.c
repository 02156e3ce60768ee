/* The channel over a listening unix socket: a newly accepted connection replaces the current one. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel/link.h"
#include "channel/transport.h"
#include "sys/log.h"
#include "sys/loop.h"

static struct watch listener = { .fd = -1 };
static struct watch connection = { .fd = -1 };

static void hang_up(void)
{
	if (connection.fd < 0)
		return;
	loop_unwatch(&connection);
	close(connection.fd);
	connection.fd = -1;
}

/* Translates results of recv(2) and send(2) to a transport's. */
static ssize_t moved(ssize_t n, bool zero_is_end)
{
	if (n > 0)
		return n;
	if (n == 0)
		return zero_is_end ? -1 : 0;
	return errno == EAGAIN || errno == EINTR ? 0 : -1;
}

static ssize_t receive(uint8_t *bytes, size_t size)
{
	ssize_t n;

	do
		n = recv(connection.fd, bytes, size, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return moved(n, true);
}

static ssize_t transmit(const uint8_t *bytes, size_t length)
{
	ssize_t n;

	do
		n = send(connection.fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return moved(n, false);
}

static void connection_ready(struct watch *watch, uint32_t events)
{
	(void)watch;
	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		link_can_read();
	if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
		link_can_write();
}

static void listener_ready(struct watch *watch, uint32_t events)
{
	int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)events;
	if (fd < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			log_errno("accept4", "channel");
		return;
	}
	link_down();
	hang_up();
	connection = (struct watch){ .fd = fd, .ready = connection_ready };
	if (loop_watch(&connection, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) < 0) {
		log_errno("epoll_ctl", "channel");
		close(fd);
		connection.fd = -1;
		return;
	}
	link_up();
}

static const struct transport unix_socket = { receive, transmit, hang_up };

const struct transport *socket_open(int listening_fd)
{
	if (fcntl(listening_fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(listening_fd, F_SETFL, O_NONBLOCK) < 0) {
		log_errno("fcntl", "channel's listening socket");
		return NULL;
	}
	listener = (struct watch){ .fd = listening_fd, .ready = listener_ready };
	if (loop_watch(&listener, EPOLLIN) < 0) {
		log_errno("epoll_ctl", "channel's listening socket");
		return NULL;
	}
	return &unix_socket;
}
