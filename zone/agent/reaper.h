/* Signals: ended children of all kinds are collected here, and the order to power off. */
#ifndef REAPER_H
#define REAPER_H

#include <stdbool.h>
#include <sys/types.h>

/* Blocks all signals and collects them in the loop. */
int reaper_open(void);
struct process;
/* A process whose pid has just become known may have ended before: then its end is told now, and
 * the process may have been freed.  True while it lives. */
bool reaper_adopt(struct process *process);

#endif
