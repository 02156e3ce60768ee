#include "sys/loop.h"

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "sys/log.h"

static int epoll_fd = -1;
static struct timer *timers; /* earliest first */
static struct epoll_event batch[32];
static int batched;

int loop_open(void)
{
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	return epoll_fd < 0 ? -1 : 0;
}

int loop_watch(struct watch *watch, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = watch };

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, watch->fd, &event);
}

int loop_rearm(struct watch *watch, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = watch };

	return epoll_ctl(epoll_fd, EPOLL_CTL_MOD, watch->fd, &event);
}

void loop_unwatch(struct watch *watch)
{
	if (watch->fd >= 0 && epoll_ctl(epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL) < 0)
		log_errno("epoll_ctl", "remove a descriptor");
	for (int i = 0; i < batched; i++)
		if (batch[i].data.ptr == watch)
			batch[i].data.ptr = NULL;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

uint64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

int64_t wall_ns(void)
{
	return (int64_t)clock_ns(CLOCK_REALTIME);
}

void timer_arm(struct timer *timer, uint64_t delay_ns)
{
	struct timer **place = &timers;

	timer_stop(timer);
	timer->due_ns = now_ns() + delay_ns;
	while (*place && (*place)->due_ns <= timer->due_ns)
		place = &(*place)->next;
	timer->next = *place;
	*place = timer;
	timer->armed = true;
}

void timer_stop(struct timer *timer)
{
	if (!timer->armed)
		return;
	for (struct timer **place = &timers; *place; place = &(*place)->next)
		if (*place == timer) {
			*place = timer->next;
			break;
		}
	timer->armed = false;
}

static int wait_ms(bool more)
{
	uint64_t now;

	if (more)
		return 0;
	if (!timers)
		return -1;
	now = now_ns();
	if (timers->due_ns <= now)
		return 0;
	now = (timers->due_ns - now + 999999) / 1000000;
	return now > INT_MAX ? INT_MAX : (int)now;
}

static void fire_due(void)
{
	uint64_t now;

	if (!timers)
		return;
	now = now_ns();
	while (timers && timers->due_ns <= now) {
		struct timer *timer = timers;

		timer_stop(timer);
		timer->fire(timer);
	}
}

void loop_run_once(bool more)
{
	batched = epoll_wait(epoll_fd, batch, ARRAY_LEN(batch), wait_ms(more));
	if (batched < 0) {
		if (errno != EINTR)
			log_errno("epoll_wait", "loop");
		batched = 0;
	}
	for (int i = 0; i < batched; i++) {
		struct watch *watch = batch[i].data.ptr;

		if (watch)
			watch->ready(watch, batch[i].events);
	}
	batched = 0;
	fire_due();
}
