/* Waits for a disk to appear or disappear below /dev. */
#ifndef SYS_DEVICE_H
#define SYS_DEVICE_H

#include <stdbool.h>

#include "sys/fault.h"
#include "sys/loop.h"

struct device_wait {
	/* Called once, later, never from within the begin call.  A fault of NULL means success. */
	void (*done)(struct device_wait *wait, const struct fault *fault);
	/* Private. */
	char name[20];
	bool gone;
	struct timer deadline;
	struct device_wait *next;
};

/* 1: the disk is there now, and `done` is not called; 0: `done` will be called; -1: the fault is set. */
int device_wait_begin(struct device_wait *wait, const char *name, struct fault *fault);
/* The same for the disappearance of a block device: 1 if it is already gone. */
int device_gone_begin(struct device_wait *wait, const char *name, struct fault *fault);
/* Ends the wait early; `done` is called with the fault. */
void device_wait_cancel(struct device_wait *wait, const struct fault *fault);

/* Blocks until the disk is there; for the boot, before the loop runs.  -1 with a log line. */
int device_wait_at_boot(const char *name);

#endif
