/* The channel over vchan rings, with the guest as server: connection N is served at data/agent/N.
 *
 * N is also written to data/agent-epoch in xenstore (docs/channel.md).  data/agent-used is the host's own note. */
#include <libxenvchan.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <xenstore.h>

#include "channel/link.h"
#include "channel/transport.h"
#include "channel/wire.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/loop.h"

#define RETRY_NS SECOND_NS

static struct libxenvchan *ring;
static struct watch ring_watch = { .fd = -1 };
static struct timer retry_timer;
static uint64_t epoch;
static bool connected;

static void serve_next(void);

static void retry(struct timer *timer)
{
	(void)timer;
	serve_next();
}

static void close_ring(void)
{
	timer_stop(&retry_timer);
	connected = false;
	if (!ring)
		return;
	loop_unwatch(&ring_watch);
	libxenvchan_close(ring);
	ring = NULL;
	ring_watch.fd = -1;
}

static void hang_up(void)
{
	close_ring();
	serve_next();
}

static void ring_ready(struct watch *watch, uint32_t events)
{
	int open;

	(void)watch;
	(void)events;
	if (libxenvchan_wait(ring) < 0)
		log_errno("libxenvchan_wait", "channel");
	open = libxenvchan_is_open(ring);
	if (open == 1 && !connected) {
		connected = true;
		link_up();
	} else if (open == 0) {
		link_down();
		hang_up();
		return;
	}
	link_can_read();
	link_can_write();
}

/* The path is relative to this domain's own directory of xenstore. */
static int publish_epoch(void)
{
	struct xs_handle *store = xs_open(0);
	char text[24];
	bool ok;

	if (!store) {
		log_errno("xs_open", "data/agent-epoch");
		return -1;
	}
	snprintf(text, sizeof(text), "%llu", (unsigned long long)epoch);
	ok = xs_write(store, XBT_NULL, "data/agent-epoch", text, (unsigned int)strlen(text));
	if (!ok)
		log_errno("xs_write", "data/agent-epoch");
	xs_close(store);
	return ok ? 0 : -1;
}

static int serve(void)
{
	char path[64];

	if (path_format(path, sizeof(path), "data/agent/%llu", (unsigned long long)epoch) < 0)
		return -1;
	ring = libxenvchan_server_init(NULL, 0, path, WINDOW, WINDOW);
	if (!ring) {
		log_errno("libxenvchan_server_init", path);
		return -1;
	}
	ring->blocking = 0;
	ring_watch = (struct watch){ .fd = libxenvchan_fd_for_select(ring), .ready = ring_ready };
	if (loop_watch(&ring_watch, EPOLLIN) < 0) {
		log_errno("epoll_ctl", path);
		libxenvchan_close(ring);
		ring = NULL;
		return -1;
	}
	if (publish_epoch() == 0)
		return 0;
	close_ring();
	return -1;
}

static void serve_next(void)
{
	epoch++;
	if (serve() == 0)
		return;
	retry_timer.fire = retry;
	timer_arm(&retry_timer, RETRY_NS);
}

static ssize_t receive(uint8_t *bytes, size_t size)
{
	return libxenvchan_read(ring, bytes, size);
}

static ssize_t transmit(const uint8_t *bytes, size_t length)
{
	return libxenvchan_write(ring, bytes, length);
}

static const struct transport vchan = { receive, transmit, hang_up };

const struct transport *vchan_open(void)
{
	serve_next();
	return &vchan;
}
