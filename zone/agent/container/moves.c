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

/* Moves the process to its present group. */
static int move_self(void *data, struct fault *fault)
{
	static const char path[] = CGROUP_ROOT "/pids/cgroup.procs";

	(void)data;
	return file_overwrite(path, "0") < 0 ? fault_errno(fault, "write", path) : 0;
}

/* In version 1 the first move after an idle time waits for an RCU grace period of about 10 ms; moves shortly after do
 * not wait (kernel/rcu/sync.c).  Therefore a move without effect starts the wait early, while disks and mounts are
 * prepared.  Version 2 is mounted with favordynmods and never waits. */
void moves_expect(void)
{
	struct fault fault;

	if (cgroup_is_v2() || moving)
		return;
	moving = job_fork(&job, "move", move_self, NULL, &fault) == 0;
	if (!moving)
		log_line("before a move: %s", fault.text);
}
