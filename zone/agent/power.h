/* The zone's end: every process killed and collected, disks let go, power off. */
#ifndef POWER_H
#define POWER_H

/* An operator's or the hypervisor's signal; the channel's order is the call PowerOff. */
void power_begin(void);
/* From the reaper, after each collection. */
void power_children_reaped(void);
/* From the loop: goes on once the reply has been sent. */
void power_go_on(void);

#endif
