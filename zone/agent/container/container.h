/* The table of containers and their execs, and the operations under way for each. */
#ifndef CONTAINER_CONTAINER_H
#define CONTAINER_CONTAINER_H

#include <stdbool.h>

#include "channel/call.h"
#include "container/process.h"
#include "mounts/rootfs.h"
#include "sys/file.h"
#include "sys/loop.h"
#include "sys/steps.h"

struct container;

struct exec {
	struct process process;
	struct container *container;
	struct exec *next;
	struct call *deletes; /* calls that wait for its removal */
	void (*remove)(struct exec *exec); /* continues the removal; set while calls wait */
};

struct container {
	char id[ID_MAX + 1];
	char directory[PATH_SIZE];
	struct process init;
	struct exec *execs;
	struct container *next;
	unsigned int jobs; /* operations under way: container_begin, container_end */
	uint64_t jobs_epoch; /* the oldest connection that began an operation under way */
	struct steps made; /* the steps of its creation after the answer */
	bool creating; /* its creation has been answered, and crun create is under way */
	struct call *held; /* calls that wait for the end of crun create, the last one first */
	bool failed; /* its creation failed after the answer; it will never have a process */
	bool refused; /* the configuration failed: see Error.cannot_start */
	struct fault failure;
	bool starting;
	bool start_held; /* the exit came while crun start was under way */
	int held_status;
	int64_t held_ns;
	struct disk_usage layer; /* the last count; see layer_use.h */
	uint64_t inodes_given; /* inodes of its writable layer that a change of owners used */
	struct call *deletes; /* calls that wait for its removal */
	void (*remove)(struct container *container); /* continues the removal; set while calls wait */
	struct timer delete_deadline;
	void (*cancel)(struct container *container); /* ends the wait of its creation; NULL: not waiting */
	void *creation;
};

/* Waits for the end of operations.  `changed` is called after each end in any container, until the waiter is
 * removed. */
struct waiter {
	void (*changed)(struct waiter *waiter);
	struct waiter *next;
};

/* NULL with the fault: the quota is used up. */
struct container *container_new(const char *id, struct fault *fault);
struct container *container_find(const char *id);
struct container *container_first(void);
/* Frees the container and its execs, and answers the calls that wait for their removal. */
void container_free(struct container *container);
struct process *container_process(struct container *container, const char *exec_id);
/* The process that a request names; NULL with the fault. */
struct process *containers_process(const ProcessRef *untrusted, const char *operation, struct fault *fault);

/* Sends the host's signal to all processes of a container.  -1 with errno. */
int container_signal_all(struct container *container, int number);

/* NULL with the fault: the quota is used up. */
struct exec *exec_new(struct container *container, const char *exec_id, struct fault *fault);
struct exec *exec_of(struct process *process);
/* Frees the exec, and answers the calls that wait for its removal. */
void exec_free(struct exec *exec);

/* Called by the reaper; false: the pid is no container's. */
bool containers_child_ended(pid_t pid, int status, int64_t at_ns);
/* Takes a process whose pid has just become known.  If the process has ended already, reports the end, which may free
 * the process.  True while the process lives. */
bool container_adopt(struct process *process);

/* Note the start or end of an operation; the end may free the container. */
void container_begin(struct container *container, const struct call *call);
void container_end(struct container *container);

void containers_wait(struct waiter *waiter);
void containers_wait_end(struct waiter *waiter);
/* Calls the waiters after the end of an operation. */
void containers_changed(void);

#endif
