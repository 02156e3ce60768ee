/* fakedom: starts a fake zone.  Three processes take part:
 *
 *   launcher   the caller's child; waits until the zone exists, or reports the error, and ends
 *   monitor    outside the zone, in its own session; keeps the console, reports the zone's end
 *   init       process 1 of the zone, stopped; becomes /init on SIGCONT */
#ifndef FAKEDOM_H
#define FAKEDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/reason.h"

enum { CGROUPS_MAX = 32, VARIABLES_MAX = 64 };

struct options {
	const char *root;
	const char *directory;
	const char *shared; /* a mount namespace; NULL: none */
	uint64_t memory; /* bytes; 0: unknown */
	const char *cgroups[CGROUPS_MAX + 1];
	char *variables[VARIABLES_MAX + 1];
};

/* init: makes namespaces, root and devices; returns only on failure.  Reports over the pipe `ready` when prepared, or
 * the error.  Runs /init after a byte from the pipe `go`. */
void init_run(const struct options *options, int channel, int console, int ready, int go);

/* monitor: makes the zone.  Writes "+" to `report` when the zone exists, else the error. */
void monitor_run(const struct options *options, int report);

/* console.log: bounded; keeps the newest text. */
int console_open(int directory);
void console_take(int log, int pipe);

#endif
