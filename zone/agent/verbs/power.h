/* The end of the zone: kill and collect every process, unmount, power off. */
#ifndef VERBS_POWER_H
#define VERBS_POWER_H

/* Called on a signal of the operator or the hypervisor; the host's order is the call PowerOff. */
void power_begin(void);
/* Called after each collection of children. */
void power_children_reaped(void);
/* Called after each round of the loop: goes on once the reply has been sent. */
void power_continue(void);

#endif
