/* The zone's control groups: version 2 where it has the memory controller, else version 1. */
#ifndef CGROUP_H
#define CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "messages.h"

enum {
	PRESSURES = 3, /* cpu, memory, io */
	GROUP_SIZE = 96,
};

/* What a group has used.  What its controllers do not tell is 0. */
struct usage {
	uint64_t cpu_ns, cpu_user_ns, cpu_system_ns;
	uint64_t periods, throttled_periods, throttled_ns;
	uint64_t memory, memory_limit, working_set, rss, cache, mapped, kernel;
	uint64_t faults, major_faults, swap, swap_limit;
	uint64_t pids, oom_kills;
	bool has_pressure[PRESSURES];
	Pressure pressure[PRESSURES];
};

int cgroup_setup(void);
bool cgroup_is_v2(void);

/* A container's group is "workloads/<id>", the zone's is "."; v1 files live below their controller. */
void cgroup_name(char group[GROUP_SIZE], const char *id);
bool cgroup_text(const char *group, const char *controller, const char *name, char *text, size_t size);
/* The number after `key` in that file ("" for a file that is one number); 0 if there is none. */
uint64_t cgroup_number(const char *group, const char *controller, const char *name, const char *key);
/* Its list of pids, or NULL with errno. */
FILE *cgroup_processes(const char *group);

/* How often the OOM killer struck in a container; 0 if unknown. */
uint64_t cgroup_oom_kills(const char *id);
/* A signal to all processes of a container; a group that is gone has none.  -1 with errno. */
int cgroup_kill(const char *id, int number);

void cgroup_usage(const char *group, struct usage *usage);
/* The figures that only a request with details has. */
void cgroup_details(const char *group, ContainerStats *stats);
void processes_count(const char *group, ContainerStats *stats);
/* False when the text is not that of a pressure file. */
bool pressure_parse(const char *text, Pressure *pressure);

#endif
