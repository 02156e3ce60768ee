#include "verbs/dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel/call.h"
#include "channel/input.h"
#include "channel/output.h"
#include "sys/log.h"
#include "sys/loop.h"
#include "verbs/verbs.h"

#define CONNECT_DEADLINE_NS (10 * SECOND_NS)

struct connection {
	struct connection *next;
	struct call *call; /* NULL: answered */
	struct watch watch; /* while it connects */
	struct timer timer; /* the deadline to connect; later, the check for the end */
	struct stream_owner owner;
	struct input *in;
	struct output *out;
	uint16_t port;
	bool ipv6; /* connects to ::1, after 127.0.0.1 was refused */
};

static struct connection *connections;
static size_t count;

static void unwatch(struct connection *connection)
{
	if (connection->watch.fd < 0)
		return;
	loop_unwatch(&connection->watch);
	close(connection->watch.fd);
	connection->watch.fd = -1;
}

static void drop(struct connection *connection)
{
	struct connection **place = &connections;

	while (*place != connection)
		place = &(*place)->next;
	*place = connection->next;
	count--;
	timer_stop(&connection->timer);
	unwatch(connection);
	input_free(connection->in);
	output_free(connection->out);
	free(connection);
}

static void refuse(struct connection *connection, enum code code, const char *cause)
{
	struct fault fault;

	fault_set(&fault, code, "dial: port %u: %s", connection->port, cause);
	call_fail(connection->call, &fault);
	drop(connection);
}

static void check_over(struct timer *timer)
{
	struct connection *connection = container_of(timer, struct connection, timer);

	if (output_given_up(connection->out))
		input_finish(connection->in);
	if (output_over(connection->out) && input_over(connection->in))
		drop(connection);
}

static void on_stream_over(struct stream_owner *owner)
{
	struct connection *connection = container_of(owner, struct connection, owner);

	timer_arm(&connection->timer, 0);
}

static int make_streams(struct connection *connection)
{
	int out = fcntl(connection->watch.fd, F_DUPFD_CLOEXEC, 0);
	int in = connection->watch.fd;

	loop_unwatch(&connection->watch);
	connection->watch.fd = -1;
	connection->in = input_new(in, false, true);
	if (!connection->in || out < 0) {
		if (out >= 0)
			close(out);
		return -1;
	}
	connection->out = output_new(out, false, true);
	if (!connection->out)
		return -1;
	connection->owner.over = on_stream_over;
	input_set_owner(connection->in, &connection->owner);
	output_set_owner(connection->out, &connection->owner);
	return 0;
}

static void describe(const struct connection *connection, Dialed *message)
{
	*message = (Dialed)DIALED_INIT;
	message->in_stream = input_number(connection->in);
	message->out_stream = output_number(connection->out);
}

static void connected(struct connection *connection)
{
	Reply reply = REPLY_INIT;
	Dialed dialed;

	timer_stop(&connection->timer);
	/* The call's connection to the host has ended: the host would not know of the streams. */
	if (!call_is_fresh(connection->call)) {
		refuse(connection, ABORTED, "the channel was interrupted");
		return;
	}
	if (make_streams(connection) < 0) {
		refuse(connection, INTERNAL, "no streams for it");
		return;
	}
	connection->timer.fire = check_over;
	describe(connection, &dialed);
	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_DIALED;
	reply.dialed = &dialed;
	call_reply(connection->call, &reply);
	connection->call = NULL;
}

size_t connections_list(Dialed messages[CONNECTIONS_MAX])
{
	size_t n = 0;

	for (struct connection *c = connections; c; c = c->next)
		if (!c->call)
			describe(c, &messages[n++]);
	return n;
}

static int begin_connect(struct connection *connection)
{
	struct sockaddr_in ipv4 = {
		.sin_family = AF_INET,
		.sin_port = htons(connection->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	struct sockaddr_in6 ipv6 = {
		.sin6_family = AF_INET6,
		.sin6_port = htons(connection->port),
		.sin6_addr = IN6ADDR_LOOPBACK_INIT,
	};
	const struct sockaddr *address = connection->ipv6 ? (struct sockaddr *)&ipv6 : (struct sockaddr *)&ipv4;
	socklen_t length = connection->ipv6 ? sizeof(ipv6) : sizeof(ipv4);
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int on = 1;

	if (fd < 0)
		return -1;
	connection->watch.fd = fd;
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
		log_errno("setsockopt", "TCP_NODELAY");
	if (connect(fd, address, length) < 0 && errno != EINPROGRESS) {
		int error = errno;

		close(fd);
		connection->watch.fd = -1;
		errno = error;
		return -1;
	}
	if (loop_watch(&connection->watch, EPOLLOUT) == 0)
		return 0;
	close(fd);
	connection->watch.fd = -1;
	return -1;
}

/* Tries the remaining addresses.  Without any, refuses, which frees the connection. */
static void try_next(struct connection *connection, int error)
{
	while (!connection->ipv6) {
		connection->ipv6 = true;
		if (begin_connect(connection) == 0)
			return;
		/* Without IPv6 in the zone, report IPv4's error. */
		if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)
			error = errno;
	}
	if (error == ECONNREFUSED)
		refuse(connection, FAILED_PRECONDITION, "connection refused: nobody listens on the zone's loopback");
	else
		refuse(connection, INTERNAL, strerrorname_np(error) ? strerrorname_np(error) : "no connection");
}

static void ready(struct watch *watch, uint32_t events)
{
	struct connection *connection = container_of(watch, struct connection, watch);
	socklen_t length = sizeof(int);
	int error = 0;

	(void)events;
	if (getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
		error = errno;
	if (!error) {
		connected(connection);
		return;
	}
	unwatch(connection);
	try_next(connection, error);
}

static void on_deadline(struct timer *timer)
{
	refuse(container_of(timer, struct connection, timer), DEADLINE_EXCEEDED, "nobody accepted in time");
}

static int begin(struct call *call, struct fault *fault)
{
	const Dial *untrusted = call->request->dial;
	struct connection *connection;

	if (!untrusted->port || untrusted->port > UINT16_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "dial: %u: not a port", untrusted->port);
	if (count >= CONNECTIONS_MAX)
		return fault_set(fault, RESOURCE_EXHAUSTED, "dial: port %u: %d connections are open",
				 untrusted->port, CONNECTIONS_MAX);
	connection = calloc(1, sizeof(*connection));
	if (!connection)
		return fault_errno(fault, "dial", "connection");
	*connection = (struct connection){ .next = connections, .call = call, .port = (uint16_t)untrusted->port };
	connection->watch = (struct watch){ .fd = -1, .ready = ready };
	connection->timer.fire = on_deadline;
	connections = connection;
	count++;
	timer_arm(&connection->timer, CONNECT_DEADLINE_NS);
	if (begin_connect(connection) < 0)
		try_next(connection, errno);
	return 0;
}

void dial(struct call *call)
{
	struct fault fault;

	if (begin(call, &fault) < 0)
		call_fail(call, &fault);
}
