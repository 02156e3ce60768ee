/* The one epoll loop: descriptors, timers, and work that was left over from the last round. */
#ifndef LOOP_H
#define LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define container_of(pointer, type, member) ((type *)(void *)((char *)(pointer) - offsetof(type, member)))
#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))

/* Owned by its user, who drops it before it goes away. */
struct watch {
	int fd;
	void (*ready)(struct watch *watch, uint32_t events);
};

struct timer {
	uint64_t due_ns;
	void (*fire)(struct timer *timer);
	struct timer *next;
	bool armed;
};

int loop_open(void);
/* -1 with errno; events as for epoll. */
int loop_watch(struct watch *watch, uint32_t events);
/* Reports again what is ready now, for an edge-triggered watch that left some. */
int loop_rearm(struct watch *watch, uint32_t events);
/* No call of `ready` comes after this, not even for an event already collected. */
void loop_drop(struct watch *watch);

void timer_arm(struct timer *timer, uint64_t delay_ns);
void timer_stop(struct timer *timer);

/* CLOCK_MONOTONIC and CLOCK_REALTIME in ns. */
uint64_t now_ns(void);
int64_t wall_ns(void);

/* One round: waits (not at all if `more` work is left), then serves what is ready. */
void loop_round(bool more);

#define SECOND_NS UINT64_C(1000000000)

#endif
