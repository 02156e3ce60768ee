/* Signals: collects every child that ends, and the order to power off. */
#ifndef SYS_REAPER_H
#define SYS_REAPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Whom the reaper tells.  Registered once, at the start. */
struct reaper_hooks {
	/* A child has ended; false when the pid is not known. */
	bool (*ended)(pid_t pid, int status, int64_t at_ns);
	/* Whether exit statuses of unknown children may be asked for later, with reaper_status. */
	bool (*keeps_unknown)(void);
	/* All children that had ended are collected. */
	void (*collected)(void);
	/* A signal asks for the power to go off. */
	void (*stop)(void);
};

/* Blocks all signals and collects them in the loop.  -1 with a log line. */
int reaper_open(const struct reaper_hooks *hooks);

/* Whether a process whose pid has just become known has ended before that: then its status and the time are set.
 * A status that was lost is told as exit code 255. */
bool reaper_status(pid_t pid, int *status, int64_t *at_ns);

#endif
