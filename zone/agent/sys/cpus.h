/* The zone's CPUs; the host may change their number at run time. */
#ifndef SYS_CPUS_H
#define SYS_CPUS_H

#include <stdint.h>

/* `source` is XENPOD_CPUS: "hotplug" (the kernel has the CPUs that the host gives, and stops CPUs that the host takes),
 * "group" (the host writes the number on the zone's control group, because the kernel shows the host's CPUs), or "" for
 * a constant number.  -1 with a log line for any other text. */
int cpus_prepare(const char *source);
/* Starts the present but stopped CPUs among the first `count`; a failure is logged. */
void cpus_start(uint32_t count);
/* The number of running CPUs. */
uint32_t cpus_running(void);

#endif
