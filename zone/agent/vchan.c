/* The channel over vchan rings, the guest as server: connection N is served at data/agent/N.
 *
 * xenstore: this side writes data/agent-epoch, the host data/agent-used (docs/channel.md). */
#include <errno.h>
#include <libxenvchan.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "file.h"
#include "link.h"
#include "loop.h"
#include "say.h"
#include "transport.h"
#include "wire.h"
#include "xenbus.h"

/* How long a host may take from writing agent-used to connecting, before its attempt is given up. */
#define CONNECT_DEADLINE_NS (5 * SECOND_NS)
#define RETRY_NS SECOND_NS

static struct libxenvchan *ring;
static struct watch ring_watch = { .fd = -1 };
static struct timer patience;
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
	timer_stop(&patience);
	connected = false;
	if (!ring)
		return;
	loop_drop(&ring_watch);
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
		say_errno("libxenvchan_wait", "channel");
	open = libxenvchan_is_open(ring);
	if (open == 1 && !connected) {
		connected = true;
		timer_stop(&patience);
		link_up();
	} else if (open == 0) {
		link_down();
		hang_up();
		return;
	}
	link_can_read();
	link_can_write();
}

/* The host took this epoch and then ended before it connected: another has to be offered. */
static void out_of_patience(struct timer *timer)
{
	(void)timer;
	if (ring && !connected) {
		say("channel: nobody connected to epoch %llu", (unsigned long long)epoch);
		hang_up();
	}
}

static void used_changed(uint64_t used)
{
	if (!ring || connected || used < epoch || patience.armed)
		return;
	patience.fire = out_of_patience;
	timer_arm(&patience, CONNECT_DEADLINE_NS);
}

static int serve(void)
{
	char path[64];

	if (path_set(path, sizeof(path), "data/agent/%llu", (unsigned long long)epoch) < 0)
		return -1;
	ring = libxenvchan_server_init(NULL, 0, path, WINDOW, WINDOW);
	if (!ring) {
		say_errno("libxenvchan_server_init", path);
		return -1;
	}
	ring->blocking = 0;
	ring_watch = (struct watch){ .fd = libxenvchan_fd_for_select(ring), .ready = ring_ready };
	if (loop_watch(&ring_watch, EPOLLIN) < 0) {
		say_errno("epoll_ctl", path);
		libxenvchan_close(ring);
		ring = NULL;
		return -1;
	}
	if (xenbus_write("data/agent-epoch", epoch) == 0)
		return 0;
	close_ring();
	return -1;
}

static void serve_next(void)
{
	epoch++;
	if (serve() == 0)
		return;
	patience.fire = retry;
	timer_arm(&patience, RETRY_NS);
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
	if (xenbus_watch("data/agent-used", used_changed) < 0)
		return NULL;
	serve_next();
	return &vchan;
}
