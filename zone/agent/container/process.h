/* Processes on the host's request: the first process of a container, and its execs.
 *
 *   PREPARING --crun create--> CREATED --crun start--> RUNNING --exit--> EXITED
 *   PREPARING --crun exec-----------------------------> RUNNING --exit--> EXITED
 *   (a created container can be killed: CREATED --exit--> EXITED) */
#ifndef CONTAINER_PROCESS_H
#define CONTAINER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "channel/call.h"
#include "channel/input.h"
#include "channel/messages.h"
#include "channel/output.h"
#include "container/stdio.h"
#include "sys/fault.h"
#include "sys/name.h"

enum process_state { PREPARING, CREATED, RUNNING, EXITED };

struct process {
	const char *container_id;
	char exec_id[ID_MAX + 1]; /* "" for the container's first */
	enum process_state state;
	pid_t pid; /* 0: unknown, or reaped */
	uint32_t shown_pid;
	int terminal; /* the master; -1: none */
	struct input *in;
	struct output *out;
	struct output *err;
	int64_t started_ns;
	int64_t exited_ns;
	uint32_t exit_code;
	bool host_killed; /* the host's SIGKILL met the process alive */
	bool oom_killed; /* by the kernel's OOM killer: the process itself, not another of the container */
	uint64_t oom_kills_before;
	bool zone_oom; /* with oom_killed: the container's own limit was not reached */
};

/* `container_id` must outlive the process. */
void process_init(struct process *process, const char *container_id, const char *exec_id);
/* Reads the pid from the file that crun wrote. */
int process_read_pid(struct process *process, const char *path, struct fault *fault);
/* Makes the streams from `io`; `io` keeps the descriptors that are not taken over. */
int process_attach(struct process *process, struct stdio *io, bool fresh, struct fault *fault);
/* Notes the process's end and tells the host. */
void process_exited(struct process *process, int status, int64_t at_ns);
/* Frees the process's streams: no process exists, or it is forgotten. */
void process_release(struct process *process);
/* Called before the host's signal is sent: a process killed by the host was not ended by the OOM killer. */
void process_note_signal(struct process *process, int number);
/* Sends a signal unless the process has ended.  `group`: to the process group of a group leader. */
int process_signal(struct process *process, int number, bool group, struct fault *fault);

void process_fill_created(const struct process *process, ProcessCreated *message);
void process_fill_ref(const struct process *process, ProcessRef *message);
void process_fill_exited(const struct process *process, ProcessRef *ref, ProcessExited *message);
/* Answers a create or an exec. */
void call_reply_created(struct call *call, const struct process *process);

#endif
