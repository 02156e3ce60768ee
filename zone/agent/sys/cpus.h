/* The zone's CPUs, of which the host may give and take some while it runs. */
#ifndef SYS_CPUS_H
#define SYS_CPUS_H

#include <stdint.h>

/* `source` is XENPOD_CPUS: "hotplug" (the kernel has those that the host gives, and stops those that it takes),
 * "group" (the host notes on the zone's control group how many there are: the kernel's are the host's), or "" for
 * CPUs that never change.  -1 with a log line for anything else. */
int cpus_prepare(const char *source);
/* Starts those of the first `count` that are there and do not run; one that does not start is logged. */
void cpus_start(uint32_t count);
/* How many run. */
uint32_t cpus_running(void);

#endif
