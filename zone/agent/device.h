/* Waiting for a disk to appear below /dev, by inotify. */
#ifndef DEVICE_H
#define DEVICE_H

#include "fault.h"
#include "loop.h"

struct device_wait {
	/* Called once, later, never from device_wait_begin.  NULL: the block device is there. */
	void (*done)(struct device_wait *wait, const struct fault *fault);
	/* Private. */
	char name[20];
	struct timer deadline;
	struct device_wait *next;
};

/* 1: it is there now (done is not called), 0: done will be called, -1: the fault is set. */
int device_wait_begin(struct device_wait *wait, const char *name, struct fault *fault);
/* Ends it early; done is called with the fault. */
void device_wait_cancel(struct device_wait *wait, const struct fault *fault);

/* Blocks until the disk is there: before there is a loop.  -1 with a line on the console. */
int device_await(const char *name);

#endif
