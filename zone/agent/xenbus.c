#include "xenbus.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <xen/io/xs_wire.h>
#include <xenstore.h>

#include "file.h"
#include "loop.h"
#include "say.h"

#define DEVICE "/dev/xen/xenbus"

static void (*notify)(uint64_t number);
static char watched[64];

/* What came of the message being received: header, then payload. */
static uint8_t message[sizeof(struct xsd_sockmsg) + XENSTORE_PAYLOAD_MAX];
static size_t received;

int xenbus_write(const char *path, uint64_t number)
{
	struct xs_handle *store = xs_open(0);
	char text[24];
	bool well;

	if (!store) {
		say_errno("xs_open", path);
		return -1;
	}
	snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
	well = xs_write(store, XBT_NULL, path, text, (unsigned int)strlen(text));
	if (!well)
		say_errno("xs_write", path);
	xs_close(store);
	return well ? 0 : -1;
}

static uint64_t read_number(const char *path)
{
	struct xs_handle *store = xs_open(0);
	unsigned int length;
	uint64_t number = 0;
	char *text;

	if (!store) {
		say_errno("xs_open", path);
		return 0;
	}
	text = xs_read(store, XBT_NULL, path, &length);
	if (text && !number_parse(text, UINT64_MAX, &number))
		say("xenstore: %s: no number", path);
	free(text);
	xs_close(store);
	return number;
}

/* True once the whole message is there; its header says how long it is. */
static bool whole(size_t *wanted)
{
	struct xsd_sockmsg head;

	*wanted = sizeof(head) - received;
	if (received < sizeof(head))
		return false;
	memcpy(&head, message, sizeof(head));
	if (head.len > XENSTORE_PAYLOAD_MAX)
		head.len = XENSTORE_PAYLOAD_MAX;
	*wanted = sizeof(head) + head.len - received;
	return *wanted == 0;
}

static void store_ready(struct watch *watch, uint32_t events)
{
	struct xsd_sockmsg head;
	bool news = false;
	size_t wanted;
	ssize_t n;

	(void)events;
	for (;;) {
		if (whole(&wanted)) {
			memcpy(&head, message, sizeof(head));
			news = news || head.type == XS_WATCH_EVENT;
			if (head.type == XS_ERROR)
				say("xenstore: watch %s: refused", watched);
			received = 0;
			continue;
		}
		n = read(watch->fd, message + received, wanted);
		if (n <= 0)
			break;
		received += (size_t)n;
	}
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		say_errno("read", DEVICE);
	if (news)
		notify(read_number(watched));
}

static struct watch store = { .fd = -1, .ready = store_ready };

/* libxenstore would need a thread for this. */
int xenbus_watch(const char *path, void (*changed)(uint64_t number))
{
	static const char token[] = "used";
	struct xsd_sockmsg head = { .type = XS_WATCH };
	uint8_t order[sizeof(head) + sizeof(watched) + sizeof(token)];
	size_t length = strlen(path) + 1;

	if (path_set(watched, sizeof(watched), "%s", path) < 0)
		return -1;
	notify = changed;
	store.fd = open(DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (store.fd < 0) {
		say_errno("open", DEVICE);
		return -1;
	}
	head.len = (uint32_t)(length + sizeof(token));
	memcpy(order, &head, sizeof(head));
	memcpy(order + sizeof(head), path, length);
	memcpy(order + sizeof(head) + length, token, sizeof(token));
	length += sizeof(head) + sizeof(token);
	if (write(store.fd, order, length) != (ssize_t)length || loop_watch(&store, EPOLLIN) < 0) {
		say_errno("watch", DEVICE);
		return -1;
	}
	return 0;
}
