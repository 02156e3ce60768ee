#include "boot/xenbus.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <xen/io/xs_wire.h>

#include "sys/log.h"
#include "sys/loop.h"

#define DEVICE "/dev/xen/xenbus"
#define DEADLINE_NS (60 * SECOND_NS)

static int ask(int fd, uint32_t type, const char *first, const char *second)
{
	size_t rest = second ? strlen(second) + 1 : 0;
	struct xsd_sockmsg head = { .type = type, .len = (uint32_t)(strlen(first) + 1 + rest) };
	struct iovec parts[] = {
		{ &head, sizeof(head) },
		{ (void *)(uintptr_t)first, strlen(first) + 1 },
		{ (void *)(uintptr_t)second, rest },
	};

	return writev(fd, parts, second ? 3 : 2) < 0 ? -1 : 0;
}

/* Reads exactly `length` bytes, before the deadline. */
static int take(int fd, char *data, size_t length, uint64_t deadline)
{
	while (length) {
		struct pollfd ready = { .fd = fd, .events = POLLIN };
		uint64_t now = now_ns();
		ssize_t n;

		if (now >= deadline || poll(&ready, 1, (int)((deadline - now) / 1000000) + 1) == 0) {
			errno = ETIMEDOUT;
			return -1;
		}
		n = read(fd, data, length);
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return -1;
		if (n > 0) {
			data += n;
			length -= (size_t)n;
		}
	}
	return 0;
}

/* Sets a watch, which fires at once, and reads the node each time it fires. */
static int await(int fd, const char *node, const char *value, uint64_t deadline)
{
	char body[XENSTORE_PAYLOAD_MAX + 1];
	struct xsd_sockmsg head;

	if (ask(fd, XS_WATCH, node, "agent") < 0)
		return -1;
	for (;;) {
		if (take(fd, (char *)&head, sizeof(head), deadline) < 0)
			return -1;
		if (head.len > XENSTORE_PAYLOAD_MAX) {
			errno = EPROTO;
			return -1;
		}
		if (take(fd, body, head.len, deadline) < 0)
			return -1;
		body[head.len] = '\0';
		if (head.type == XS_READ && strcmp(body, value) == 0)
			return 0;
		if (head.type == XS_WATCH_EVENT && ask(fd, XS_READ, node, NULL) < 0)
			return -1;
	}
}

int xenbus_await(const char *node, const char *value)
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	int result;

	if (fd < 0) {
		log_errno("open", DEVICE);
		return -1;
	}
	result = await(fd, node, value, now_ns() + DEADLINE_NS);
	if (result < 0)
		log_errno("wait for", node);
	close(fd);
	return result;
}
