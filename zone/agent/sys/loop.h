/* The only epoll loop: descriptors, timers, and work left over from the last round. */
#ifndef SYS_LOOP_H
#define SYS_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define container_of(pointer, type, member) ((type *)(void *)((char *)(pointer) - offsetof(type, member)))
#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))

/* A watched descriptor.  The user owns the memory, and unwatches before freeing. */
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
/* Takes events like epoll_ctl(2).  -1 with errno. */
int loop_watch(struct watch *watch, uint32_t events);
/* Makes an edge-triggered watch report all ready events again. */
int loop_rearm(struct watch *watch, uint32_t events);
/* `ready` is not called after this, not even for an already collected event. */
void loop_unwatch(struct watch *watch);

void timer_arm(struct timer *timer, uint64_t delay_ns);
void timer_stop(struct timer *timer);

/* CLOCK_MONOTONIC and CLOCK_REALTIME in ns. */
uint64_t now_ns(void);
int64_t wall_ns(void);

/* Waits for events, then serves the ready ones.  With `more` work left it does not wait. */
void loop_run_once(bool more);

#define SECOND_NS UINT64_C(1000000000)

#endif
