#include "channel/times.h"

#include "sys/loop.h"

#define NS_PER_US 1000

size_t times_of(struct times *times, const struct steps *steps)
{
	uint64_t now = now_ns();

	for (size_t i = 0; i < steps->count; i++) {
		const struct step *step = &steps->all[i];

		times->each[i] = (StepTime)STEP_TIME_INIT;
		times->each[i].step = (Step)step->name;
		times->each[i].ago_us = (now - step->begun) / NS_PER_US;
		times->each[i].duration_us = (step->ended - step->begun) / NS_PER_US;
		times->list[i] = &times->each[i];
	}
	return steps->count;
}
