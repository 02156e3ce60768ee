/* The zone's own clock, if it has one. */
#ifndef SYS_CLOCK_H
#define SYS_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "sys/fault.h"

/* Whether the zone has its own clock: the clocks then count from the zone's own boot. */
bool clock_own(void);
/* Adds to CLOCK_REALTIME: at once with `step`, else gradually like adjtime(3).  FAILED_PRECONDITION: the clock is the
 * host's. */
int clock_add(int64_t add_ns, bool step, struct fault *fault);

#endif
