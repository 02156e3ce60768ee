/* Processes that the host asked for: a container's first one, and execs in it.
 *
 *   PREPARING --crun create--> CREATED --crun start--> RUNNING --exit--> EXITED
 *   PREPARING --crun exec-----------------------------> RUNNING --exit--> EXITED
 *   (a created container can be killed: CREATED --exit--> EXITED) */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "call.h"
#include "fault.h"
#include "messages.h"
#include "name.h"
#include "process_stdio.h"
#include "stream.h"

struct container;

enum process_state { PREPARING, CREATED, RUNNING, EXITED };

struct process {
	struct container *container;
	char exec_id[ID_MAX + 1]; /* "" for the container's first */
	enum process_state state;
	pid_t pid; /* 0 while unknown, and once it is reaped */
	uint32_t shown_pid;
	int terminal; /* the master, -1: none */
	struct input *in;
	struct output *out;
	struct output *err;
	int64_t started_ns;
	int64_t exited_ns;
	uint32_t exit_code;
	bool oom_killed;
	uint64_t oom_kills_before;
};

void process_init(struct process *process, struct container *container, const char *exec_id);
/* The pid that crun wrote to this file. */
int process_read_pid(struct process *process, const char *path, struct fault *fault);
/* Makes the streams; `io` keeps what is not taken over. */
int process_attach(struct process *process, struct stdio *io, bool fresh, struct fault *fault);
void process_exited(struct process *process, int status, int64_t at_ns);
/* The process will never be (again): frees its streams. */
void process_release(struct process *process);
/* Sends a signal if it has not ended; to its whole process group if `group` and it leads one. */
int process_signal(const struct process *process, int number, bool group, struct fault *fault);

/* NULL with the fault: the process a request names. */
struct process *process_find(const ProcessRef *untrusted, const char *operation, struct fault *fault);

void process_created(const struct process *process, ProcessCreated *message);
void process_ref(const struct process *process, ProcessRef *message);
void process_exit_message(const struct process *process, ProcessRef *ref, ProcessExited *message);
/* Answers a create or an exec. */
void call_created(struct call *call, const struct process *process);

#endif
