#include "sys/device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sys/log.h"
#include "sys/pod_userns.h"

#define DEADLINE_NS (20 * SECOND_NS)
#define BOOT_DEADLINE_NS (60 * SECOND_NS)

/* Without inotify, /dev is polled at this interval; an idle inotify instance is kept for KEEP_NS. */
#define LOOK_NS (5 * 1000000ULL)
#define KEEP_NS SECOND_NS

#define NODE_CHANGES (IN_CREATE | IN_MOVED_TO | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM)

static void changed(struct watch *watch, uint32_t events);
static void on_look(struct timer *timer);
static void on_idle(struct timer *timer);

/* A device node appears before its disk is live (open gives ENXIO): only a uevent reports a live disk.  A node made by
 * hand has no uevent: only inotify reports the node. */
static struct watch nodes = { .fd = -1, .ready = changed };
static struct watch uevents = { .fd = -1, .ready = changed };
static int node_watch = -1;
static struct timer look = { .fire = on_look };
static struct timer idle = { .fire = on_idle };
static struct device_wait *waits;

static bool present(const char *name)
{
	char path[32];
	struct stat device;
	int fd;

	snprintf(path, sizeof(path), "/dev/%s", name);
	if (stat(path, &device) < 0 || !S_ISBLK(device.st_mode))
		return false;
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return errno != ENXIO; /* the disk's user reports other errors */
	close(fd);
	return true;
}

static bool exists(const char *name)
{
	char path[32];
	struct stat device;

	snprintf(path, sizeof(path), "/dev/%s", name);
	return stat(path, &device) == 0 && S_ISBLK(device.st_mode);
}

static bool come_true(const struct device_wait *wait)
{
	return wait->gone ? !exists(wait->name) : present(wait->name);
}

static int uevents_open(void)
{
	return pod_network_listen_outside(NETLINK_KOBJECT_UEVENT, 1);
}

static void watch_close(struct watch *watch)
{
	if (watch->fd < 0)
		return;
	loop_unwatch(watch);
	close(watch->fd);
	watch->fd = -1;
}

static int watch_open(struct watch *watch, int fd)
{
	if (fd < 0)
		return -1;
	watch->fd = fd;
	if (loop_watch(watch, EPOLLIN) == 0)
		return 0;
	close(fd);
	watch->fd = -1;
	return -1;
}

static void nodes_unwatch(void)
{
	if (node_watch >= 0 && inotify_rm_watch(nodes.fd, node_watch) < 0)
		log_errno("inotify_rm_watch", "/dev");
	node_watch = -1;
}

/* Zones that share a kernel share its limit of inotify instances (fs.inotify.max_user_instances, 128 by default) with
 * the host's own programs.  Without an instance the nodes are polled during a wait. */
static int nodes_watch(void)
{
	timer_stop(&idle);
	if (nodes.fd < 0 && watch_open(&nodes, inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) < 0) {
		if (errno != EMFILE)
			return -1;
		timer_arm(&look, LOOK_NS);
		return 0;
	}
	node_watch = inotify_add_watch(nodes.fd, "/dev", NODE_CHANGES);
	return node_watch < 0 ? -1 : 0;
}

static void watches_close(void)
{
	if (waits)
		return;
	timer_stop(&look);
	nodes_unwatch();
	watch_close(&uevents);
	if (nodes.fd >= 0)
		timer_arm(&idle, KEEP_NS);
}

/* Watch only during a wait: /dev is busy while a container is created.  The inotify instance stays open a while longer:
 * its close waits for SRCU grace periods, 10 ms or more, and a container has several disks. */
static int watches_open(void)
{
	int error;

	if (uevents.fd >= 0)
		return 0;
	if (nodes_watch() == 0 && watch_open(&uevents, uevents_open()) == 0)
		return 0;
	error = errno;
	watches_close();
	errno = error;
	return -1;
}

static void on_idle(struct timer *timer)
{
	(void)timer;
	watch_close(&nodes);
}

static void finish(struct device_wait *wait, const struct fault *fault)
{
	struct device_wait **place = &waits;

	while (*place != wait)
		place = &(*place)->next;
	*place = wait->next;
	timer_stop(&wait->deadline);
	watches_close();
	wait->done(wait, fault);
}

static void on_deadline(struct timer *timer)
{
	struct device_wait *wait = container_of(timer, struct device_wait, deadline);
	struct fault fault;

	fault_set(&fault, DEADLINE_EXCEEDED, "wait for disk: /dev/%s: it did not %s within 20 s", wait->name,
		  wait->gone ? "go" : "appear");
	finish(wait, &fault);
}

static struct device_wait *first_true(void)
{
	struct device_wait *wait = waits;

	while (wait && !come_true(wait))
		wait = wait->next;
	return wait;
}

static void changed(struct watch *watch, uint32_t events)
{
	char news[1024] __attribute__((aligned(8)));
	struct device_wait *wait;
	ssize_t n;

	(void)events;
	while ((n = read(watch->fd, news, sizeof(news))) > 0)
		;
	if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS) /* ENOBUFS: events were lost */
		log_errno("read", "changes in /dev");
	while ((wait = first_true()))
		finish(wait, NULL);
}

static void on_look(struct timer *timer)
{
	struct device_wait *wait;

	/* Arm the timer first: the last served wait stops it. */
	timer_arm(timer, LOOK_NS);
	while ((wait = first_true()))
		finish(wait, NULL);
}

int device_wait_at_boot(const char *name)
{
	uint64_t now, deadline = now_ns() + BOOT_DEADLINE_NS;
	struct pollfd news = { .fd = uevents_open(), .events = POLLIN };
	char drained[1024];
	bool there;

	if (news.fd < 0) {
		log_errno("watch", "/dev");
		return -1;
	}
	while (!(there = present(name)) && (now = now_ns()) < deadline)
		if (poll(&news, 1, (int)((deadline - now) / 1000000) + 1) > 0)
			while (read(news.fd, drained, sizeof(drained)) > 0)
				;
	close(news.fd);
	if (!there)
		log_line("wait for disk: /dev/%s: it did not appear within 60 s", name);
	return there ? 0 : -1;
}

static int begin(struct device_wait *wait, const char *name, bool gone, struct fault *fault)
{
	snprintf(wait->name, sizeof(wait->name), "%s", name);
	wait->gone = gone;
	wait->deadline = (struct timer){ .fire = on_deadline };
	if (come_true(wait))
		return 1;
	if (watches_open() < 0)
		return fault_errno(fault, "watch", "/dev");
	wait->next = waits;
	waits = wait;
	timer_arm(&wait->deadline, DEADLINE_NS);
	/* The disk may have come, or gone, just before the watch. */
	if (!come_true(wait))
		return 0;
	waits = wait->next;
	timer_stop(&wait->deadline);
	watches_close();
	return 1;
}

int device_wait_begin(struct device_wait *wait, const char *name, struct fault *fault)
{
	return begin(wait, name, false, fault);
}

int device_gone_begin(struct device_wait *wait, const char *name, struct fault *fault)
{
	return begin(wait, name, true, fault);
}

void device_wait_cancel(struct device_wait *wait, const struct fault *fault)
{
	finish(wait, fault);
}
