/* fakedom: starts a fake zone.  Three processes take part:
 *
 *   launcher   the caller's child; waits until the zone is there, or reports why not, and ends
 *   monitor    outside the zone, in a session of its own; keeps the console, reports the zone's end
 *   init       process 1 of the zone, stopped; becomes /init when it gets SIGCONT */
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
	uint64_t memory; /* bytes; 0: not told */
	const char *cgroups[CGROUPS_MAX + 1];
	char *variables[VARIABLES_MAX + 1];
};

/* init: makes namespaces, root and devices; returns only on failure.  It reports over the pipe `ready` that it is
 * prepared, or why not, and runs /init once a byte comes over the pipe `go`. */
void init_run(const struct options *options, int channel, int console, int ready, int go);

/* monitor: makes the zone.  Writes "+" to `report` when it is there, else the reason. */
void monitor_run(const struct options *options, int report);

/* console.log: bounded, the newest text is kept. */
int console_open(int directory);
void console_take(int log, int pipe);

#endif
