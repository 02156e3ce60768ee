/* A crun command, or work of our own, that runs beside the loop, and what it said. */
#ifndef JOB_H
#define JOB_H

#include <stdbool.h>
#include <sys/types.h>

#include "fault.h"
#include "loop.h"

struct job {
	/* Called once, from the reaper; fault is NULL when the command gave 0. */
	void (*done)(struct job *job, const struct fault *fault);
	/* Private. */
	const char *name;
	bool ours; /* not crun */
	pid_t pid;
	int status;
	int log_fd;
	bool late;
	struct timer deadline;
	struct job *next;
};

/* Runs crun with these arguments (the last one NULL, the first one the subcommand); its
 * standard input, output and error are `stdio`, -1 stands for /dev/null.  -1: done is not called. */
int job_start(struct job *job, const char *const *arguments, const int stdio[3], struct fault *fault);
/* Runs `work` in a process of its own, a copy of this one with none of its descriptors; its fault becomes
 * the job's.  -1: done is not called. */
int job_fork(struct job *job, const char *name, int (*work)(void *data, struct fault *fault), void *data,
	     struct fault *fault);
/* crun has a container of this name. */
bool crun_knows(const char *id);
/* Some command is under way, so that exit statuses of unknown processes may be wanted. */
bool jobs_running(void);
/* From the reaper: true when `pid` is a job's. */
bool job_reaped(pid_t pid, int status);
/* From the reaper, once all that had ended are collected: calls done. */
void jobs_finish(void);

#endif
