/* What took how long, for the host's traces. */
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

/* Notes a step that has ended.  One too many is left out. */
void steps_add(struct steps *steps, int name, uint64_t begun, uint64_t ended);
/* Notes what has been done since the last step ended; before the first one: since `begun`. */
void steps_next(struct steps *steps, int name, uint64_t begun);

#endif
