/* Durations of the agent's steps, for the host's traces. */
#ifndef SYS_STEPS_H
#define SYS_STEPS_H

#include <stddef.h>
#include <stdint.h>

enum { STEPS_MAX = 8 };

/* CLOCK_MONOTONIC in ns. */
struct step {
	int name; /* a number of the contract's enum Step */
	uint64_t begun;
	uint64_t ended;
};

struct steps {
	size_t count;
	struct step all[STEPS_MAX];
};

/* Notes an ended step.  A step beyond the limit is dropped. */
void steps_add(struct steps *steps, int name, uint64_t begun, uint64_t ended);
/* Notes the work since the end of the last step; for the first step: since `begun`. */
void steps_next(struct steps *steps, int name, uint64_t begun);

#endif
