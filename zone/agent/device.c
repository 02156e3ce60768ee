#include "device.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "say.h"

#define DEADLINE_NS (10 * SECOND_NS)

static void changed(struct watch *watch, uint32_t events);

static struct watch watcher = { .fd = -1, .ready = changed };
static struct device_wait *waits;

static bool present(const char *name)
{
	char path[32];
	struct stat device;

	snprintf(path, sizeof(path), "/dev/%s", name);
	return stat(path, &device) == 0 && S_ISBLK(device.st_mode);
}

/* inotify only while someone waits: /dev is busy when a container comes. */
static int watcher_open(void)
{
	if (watcher.fd >= 0)
		return 0;
	watcher.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (watcher.fd < 0)
		return -1;
	if (inotify_add_watch(watcher.fd, "/dev", IN_CREATE | IN_MOVED_TO | IN_ATTRIB) >= 0 &&
	    loop_watch(&watcher, EPOLLIN) == 0)
		return 0;
	close(watcher.fd);
	watcher.fd = -1;
	return -1;
}

static void watcher_close(void)
{
	if (waits || watcher.fd < 0)
		return;
	loop_drop(&watcher);
	close(watcher.fd);
	watcher.fd = -1;
}

static void finish(struct device_wait *wait, const struct fault *fault)
{
	struct device_wait **place = &waits;

	while (*place != wait)
		place = &(*place)->next;
	*place = wait->next;
	timer_stop(&wait->deadline);
	watcher_close();
	wait->done(wait, fault);
}

static void too_late(struct timer *timer)
{
	struct device_wait *wait = container_of(timer, struct device_wait, deadline);
	struct fault fault;

	fault_set(&fault, DEADLINE_EXCEEDED, "wait for disk: /dev/%s: it did not appear within 10 s", wait->name);
	finish(wait, &fault);
}

static struct device_wait *next_present(void)
{
	struct device_wait *wait = waits;

	while (wait && !present(wait->name))
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
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		say_errno("read", "inotify of /dev");
	while ((wait = next_present()))
		finish(wait, NULL);
}

int device_wait_begin(struct device_wait *wait, const char *name, struct fault *fault)
{
	snprintf(wait->name, sizeof(wait->name), "%s", name);
	wait->deadline = (struct timer){ .fire = too_late };
	if (present(name))
		return 1;
	if (watcher_open() < 0)
		return fault_errno(fault, "inotify", "/dev");
	wait->next = waits;
	waits = wait;
	/* It may have come just before the watch. */
	timer_arm(&wait->deadline, DEADLINE_NS);
	if (!present(name))
		return 0;
	waits = wait->next;
	timer_stop(&wait->deadline);
	watcher_close();
	return 1;
}

void device_wait_cancel(struct device_wait *wait, const struct fault *fault)
{
	finish(wait, fault);
}
