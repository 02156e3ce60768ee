#include "sys/steps.h"

#include "sys/loop.h"

void steps_add(struct steps *steps, int name, uint64_t begun, uint64_t ended)
{
	if (steps->count < STEPS_MAX)
		steps->all[steps->count++] = (struct step){ .name = name, .begun = begun, .ended = ended };
}

void steps_next(struct steps *steps, int name, uint64_t begun)
{
	steps_add(steps, name, steps->count ? steps->all[steps->count - 1].ended : begun, now_ns());
}
