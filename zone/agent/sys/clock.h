/* The zone's clock, where it has one of its own. */
#ifndef SYS_CLOCK_H
#define SYS_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "sys/fault.h"

/* Whether it has: the clocks then count from the zone's own boot. */
bool clock_own(void);
/* Adds to CLOCK_REALTIME, at once with `step`, else as adjtime(3) does it.  FAILED_PRECONDITION where it is the host's
 * clock. */
int clock_add(int64_t add_ns, bool step, struct fault *fault);

#endif
