/* The zone's control groups: version 2 if it has the memory controller, else version 1. */
#ifndef SYS_CGROUP_H
#define SYS_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CGROUP_ROOT "/sys/fs/cgroup"

enum { GROUP_SIZE = 96 };

bool cgroup_is_v2(void);
/* Called at boot, after version 2 is mounted. */
void cgroup_use_v2(void);

/* A container's group is "workloads/<id>", the zone's is "."; version 1 has them below each controller. */
void cgroup_name(char group[GROUP_SIZE], const char *id);
/* Reads a file of a group, and keeps the file open. */
bool cgroup_read(const char *group, const char *controller, const char *name, char *text, size_t size);
/* The number after `key` in a group's file (key "" for a single number); 0 if missing. */
uint64_t cgroup_number(const char *group, const char *controller, const char *name, const char *key);
/* Opens the group's list of pids.  NULL with errno. */
FILE *cgroup_procs_open(const char *group);

/* Number of OOM kills in a container; 0 if unknown. */
uint64_t cgroup_oom_kills(const char *id);
/* Whether a container has ever reached its own memory limit. */
bool cgroup_limit_reached(const char *id);
/* Closes the open files of a container's group. */
void cgroup_forget(const char *id);
/* Sends a signal to all processes of a container.  A missing group has none.  -1 with errno. */
int cgroup_kill(const char *id, int number);

#endif
