/* Signals: collects every ended child, and the power-off order. */
#ifndef SYS_REAPER_H
#define SYS_REAPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The reaper's callbacks.  Registered once, at the start. */
struct reaper_hooks {
	/* A child has ended; false: unknown pid. */
	bool (*ended)(pid_t pid, int status, int64_t at_ns);
	/* Whether exit statuses of unknown children are kept for a later reaper_status. */
	bool (*keeps_unknown)(void);
	/* All ended children are collected. */
	void (*collected)(void);
	/* A signal asks for power-off. */
	void (*stop)(void);
};

/* Blocks all signals and collects them in the loop.  -1 with a log line. */
int reaper_open(const struct reaper_hooks *hooks);

/* Whether a process has ended before its pid became known; then sets its status and the time.  A lost status becomes
 * exit code 255. */
bool reaper_status(pid_t pid, int *status, int64_t *at_ns);

#endif
