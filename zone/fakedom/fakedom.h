/* fakedom: starts a fake zone.  Three processes take part:
 *
 *   launcher   the caller's child; waits until the zone is there, says why not, and ends
 *   monitor    outside the zone, in a session of its own; keeps the console, tells the end
 *   init       process 1 of the zone, stopped; becomes /init when it gets SIGCONT */
#ifndef FAKEDOM_H
#define FAKEDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "reason.h"

enum { CGROUPS_MAX = 32, VARIABLES_MAX = 64 };

struct options {
	const char *root;
	const char *directory;
	const char *shared; /* a mount namespace; NULL: none */
	const char *cgroups[CGROUPS_MAX + 1];
	char *variables[VARIABLES_MAX + 1];
};

/* init: namespaces, root, devices; returns only on failure.  `go` is a pipe: init says over
 * `ready` that it is prepared (or why not) and runs /init once `go` gives a byte. */
void init_run(const struct options *options, int channel, int console, int ready, int go);
int init_devices(struct reason *reason);

/* monitor: makes the zone, reports over `report` (a reason, or nothing at all when it is there). */
void monitor_run(const struct options *options, int report);

/* console.log, bounded; the newest is kept. */
int console_open(int directory);
void console_take(int log, int pipe);

#endif
