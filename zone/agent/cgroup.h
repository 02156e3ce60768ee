/* The zone's control groups: version 2 where it has the memory controller, else version 1. */
#ifndef CGROUP_H
#define CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "messages.h"

int cgroup_setup(void);
bool cgroup_is_v2(void);

/* A container's group is /workloads/<id>.  How often the OOM killer struck there; 0 if unknown. */
uint64_t cgroup_oom_kills(const char *id);
/* A signal to all processes there; a group that is gone has none.  -1 with errno. */
int cgroup_kill(const char *id, int number);
/* Fills in what the controllers tell; what they do not tell stays 0. */
void cgroup_stats(const char *id, ContainerStats *stats);

#endif
