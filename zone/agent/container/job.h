/* A crun command, or work of the agent itself, in a separate process beside the loop. */
#ifndef CONTAINER_JOB_H
#define CONTAINER_JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sys/fault.h"
#include "sys/loop.h"
#include "sys/steps.h"

struct job {
	/* Called once, from jobs_finish_ended.  A fault of NULL: the command succeeded. */
	void (*done)(struct job *job, const struct fault *fault);
	pid_t oom_like; /* crun and its children get this process's oom_score_adj; 0: the agent's own */
	/* Private. */
	const char *name;
	bool is_crun;
	pid_t pid;
	int status;
	int log_fd;
	uint64_t begun_ns;
	uint64_t ended_ns;
	bool too_late;
	struct timer deadline;
	struct job *next;
};

/* Runs crun with these arguments: the subcommand first, NULL last.  Its standard input, output and error are `stdio`;
 * -1 stands for /dev/null.  -1: `done` is not called. */
int job_start(struct job *job, const char *const *arguments, const int stdio[3], struct fault *fault);
/* Runs `work` in a copy of this process without its descriptors.  The copy's fault becomes the job's.  -1: `done` is
 * not called. */
int job_fork(struct job *job, const char *name, int (*work)(void *data, struct fault *fault), void *data,
	     struct fault *fault);
/* Whether the command ended by itself, with a failure status: neither killed nor too late.  For `done`. */
bool job_refused(const struct job *job);
/* Notes the run time as a step of this name.  For `done`. */
void job_note(const struct job *job, struct steps *steps, int name);
/* Whether crun has a container of this name. */
bool crun_has(const char *id);
/* Whether a job is under way: the exit status of an unknown process may then be asked for. */
bool jobs_running(void);
/* Called by the reaper; false: the pid is no job's. */
bool job_ended(pid_t pid, int status);
/* Calls `done` of the ended jobs.  Called by the reaper after it has collected all ended children. */
void jobs_finish_ended(void);

#endif
