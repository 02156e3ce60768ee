/* Steps in the form of a HELLO or a reply. */
#ifndef CHANNEL_TIMES_H
#define CHANNEL_TIMES_H

#include "channel/messages.h"
#include "sys/steps.h"

struct times {
	StepTime each[STEPS_MAX];
	StepTime *list[STEPS_MAX]; /* pointers for a message */
};

/* Describes the steps so far; returns their number. */
size_t times_of(struct times *times, const struct steps *steps);

#endif
