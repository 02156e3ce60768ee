/* Steps as a HELLO or a reply has them. */
#ifndef CHANNEL_TIMES_H
#define CHANNEL_TIMES_H

#include "channel/messages.h"
#include "sys/steps.h"

struct times {
	StepTime each[STEPS_MAX];
	StepTime *list[STEPS_MAX]; /* as a message wants them */
};

/* Describes the steps as of now; how many there are. */
size_t times_of(struct times *times, const struct steps *steps);

#endif
