/* The end of the zone: kill and collect every process, unmount, power off. */
#ifndef VERBS_POWER_H
#define VERBS_POWER_H

/* A signal of the operator or the hypervisor asks for it; the host's order is the call PowerOff. */
void power_begin(void);
/* Called after each collection of children. */
void power_children_reaped(void);
/* Called after each round of the loop: goes on once the reply has been sent. */
void power_continue(void);

#endif
