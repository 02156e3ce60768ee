#include "container/moves.h"

#include <stdbool.h>

#include "container/job.h"
#include "sys/cgroup.h"
#include "sys/file.h"
#include "sys/log.h"

static void moved(struct job *job, const struct fault *fault);

static struct job job = { .done = moved };
static bool moving;

static void moved(struct job *ended, const struct fault *fault)
{
	(void)ended;
	moving = false;
	if (fault)
		log_line("before a move: %s", fault->text);
}

/* To the group that it is in. */
static int move_self(void *data, struct fault *fault)
{
	static const char path[] = CGROUP_ROOT "/pids/cgroup.procs";

	(void)data;
	return file_overwrite(path, "0") < 0 ? fault_errno(fault, "write", path) : 0;
}

/* With version 1 the first move after some idle time waits for an RCU grace period, 10 ms or so, and those that
 * come shortly after it do not (kernel/rcu/sync.c).  So one that changes nothing begins that wait now, while disks
 * and mounts are made ready.  Version 2 is mounted with favordynmods and waits for none. */
void moves_expect(void)
{
	struct fault fault;

	if (cgroup_is_v2() || moving)
		return;
	moving = job_fork(&job, "move", move_self, NULL, &fault) == 0;
	if (!moving)
		log_line("before a move: %s", fault.text);
}
