/* Resource use of a container, or of the whole zone: from the control groups and from proc. */
#ifndef CONTAINER_USAGE_H
#define CONTAINER_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "channel/messages.h"

enum { PRESSURES = 3 /* cpu, memory, io */ };

/* The use of a group.  Figures that its controllers lack are 0. */
struct usage {
	int64_t read_at_ns; /* wall-clock time of the read of the CPU time */
	uint64_t cpu_ns, cpu_user_ns, cpu_system_ns;
	uint64_t periods, throttled_periods, throttled_ns;
	uint64_t memory, memory_limit, working_set, rss, cache, mapped, kernel;
	uint64_t faults, major_faults, swap, swap_limit;
	uint64_t pids, oom_kills;
	bool has_pressure[PRESSURES];
	Pressure pressure[PRESSURES];
};

/* `group` as in cgroup_name. */
void usage_of_group(const char *group, struct usage *usage);
/* The zone's figures from the topmost group: CPU time, memory, faults, swap and pressure.  The rest is 0. */
void usage_of_zone(struct usage *usage);
/* The figures for requests of details only: from the group's files, and from its processes one by one. */
void usage_details(const char *group, ContainerStats *stats);
/* False: not the text of a pressure file. */
bool pressure_parse(const char *text, Pressure *pressure);
/* a - b, but at least 0: the kernel does not read its counters all at once. */
uint64_t subtract(uint64_t a, uint64_t b);

#endif
