/* Containers: the table of them, and what is under way for each. */
#ifndef CONTAINER_H
#define CONTAINER_H

#include <stdbool.h>

#include "call.h"
#include "process.h"

enum {
	CONTAINERS_MAX = 64,
	EXECS_MAX = 256, /* in the zone */
	PATH_SIZE = 256,
};

struct exec {
	struct process process;
	struct exec *next;
	struct call *deletes; /* calls that wait for its end */
};

struct container {
	char id[ID_MAX + 1];
	char directory[PATH_SIZE];
	struct process init;
	struct exec *execs;
	struct container *next;
	unsigned int jobs; /* operations under way: container_begin, container_end */
	uint64_t jobs_epoch; /* the oldest connection that began one of them */
	bool starting;
	bool start_held; /* the exit came while crun start was under way */
	int held_status;
	int64_t held_ns;
	uint64_t inodes_given; /* of its writable layer, to change owners: not written by the container */
	struct call *deletes; /* calls that wait for its removal */
	struct timer delete_deadline;
	void (*cancel)(struct container *container); /* its creation waits, and can end early */
	void *creation;
};

/* NULL with the fault when the quota is used up. */
struct container *container_new(const char *id, struct fault *fault);
struct container *container_find(const char *id);
struct container *container_first(void);
/* Frees it and its execs; the calls that wait for its removal are answered. */
void container_free(struct container *container);
struct process *container_process(struct container *container, const char *exec_id);

/* NULL with the fault when the quota is used up. */
struct exec *exec_new(struct container *container, const char *exec_id, struct fault *fault);
struct exec *exec_of(struct process *process);
void exec_free(struct exec *exec);

/* The process whose pid this is, or NULL. */
struct process *process_by_pid(pid_t pid);
/* A process that the reaper collected. */
void container_process_ended(struct process *process, int status, int64_t at_ns);

void container_begin(struct container *container, const struct call *call);
/* May free the container. */
void container_end(struct container *container);
/* Something has ended: goes on with what waits for that.  May free the container. */
void container_settle(struct container *container);
/* Goes on with a removal that is wanted. */
void deletion_go_on(struct container *container);
void exec_deletion_go_on(struct exec *exec);

#endif
