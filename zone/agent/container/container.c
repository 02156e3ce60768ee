#include "container/container.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sys/cgroup.h"
#include "sys/reaper.h"

static struct container *containers;
static unsigned int container_count;
static unsigned int exec_count;
static struct waiter *waiters;

struct container *container_first(void)
{
	return containers;
}

struct container *container_find(const char *id)
{
	struct container *container = containers;

	while (container && strcmp(container->id, id) != 0)
		container = container->next;
	return container;
}

struct container *container_new(const char *id, struct fault *fault)
{
	struct container *container;

	if (container_count >= CONTAINERS_MAX) {
		fault_set(fault, RESOURCE_EXHAUSTED, "create container: %s: %d containers are here already", id,
			  CONTAINERS_MAX);
		return NULL;
	}
	container = calloc(1, sizeof(*container));
	if (!container) {
		fault_errno(fault, "create container", id);
		return NULL;
	}
	strcpy(container->id, id);
	if (path_format(container->directory, PATH_SIZE, "/run/xenpod/containers/%s", id) < 0) {
		fault_errno(fault, "create container", id);
		free(container);
		return NULL;
	}
	process_init(&container->init, container->id, "");
	container->next = containers;
	containers = container;
	container_count++;
	return container;
}

static void answer_all(struct call *calls)
{
	while (calls) {
		struct call *call = calls;

		calls = call->next;
		call_done(call);
	}
}

void container_free(struct container *container)
{
	struct container **place = &containers;

	while (container->execs)
		exec_free(container->execs);
	process_release(&container->init);
	while (*place != container)
		place = &(*place)->next;
	*place = container->next;
	container_count--;
	timer_stop(&container->delete_deadline);
	answer_all(container->deletes);
	cgroup_forget(container->id);
	free(container);
}

struct process *container_process(struct container *container, const char *exec_id)
{
	if (!exec_id[0])
		return &container->init;
	for (struct exec *exec = container->execs; exec; exec = exec->next)
		if (strcmp(exec->process.exec_id, exec_id) == 0)
			return &exec->process;
	return NULL;
}

struct exec *exec_of(struct process *process)
{
	return container_of(process, struct exec, process);
}

struct exec *exec_new(struct container *container, const char *exec_id, struct fault *fault)
{
	struct exec *exec;

	if (exec_count >= EXECS_MAX) {
		fault_set(fault, RESOURCE_EXHAUSTED, "exec: %s: %d execs are here already", exec_id, EXECS_MAX);
		return NULL;
	}
	exec = calloc(1, sizeof(*exec));
	if (!exec) {
		fault_errno(fault, "exec", exec_id);
		return NULL;
	}
	process_init(&exec->process, container->id, exec_id);
	exec->container = container;
	exec->next = container->execs;
	container->execs = exec;
	exec_count++;
	return exec;
}

void exec_free(struct exec *exec)
{
	struct exec **place = &exec->container->execs;

	while (*place != exec)
		place = &(*place)->next;
	*place = exec->next;
	exec_count--;
	process_release(&exec->process);
	answer_all(exec->deletes);
	free(exec);
}

struct process *containers_process(const ProcessRef *untrusted, const char *operation, struct fault *fault)
{
	struct container *container;
	struct process *process;

	if (!untrusted || !id_valid(untrusted->container_id) ||
	    (untrusted->exec_id[0] && !id_valid(untrusted->exec_id))) {
		fault_set(fault, INVALID_ARGUMENT, "%s: not a process's name", operation);
		return NULL;
	}
	container = container_find(untrusted->container_id);
	process = container ? container_process(container, untrusted->exec_id) : NULL;
	if (!process)
		fault_set(fault, NOT_FOUND, "%s: %s%s%s: no such process", operation, untrusted->container_id,
			  untrusted->exec_id[0] ? " exec " : "", untrusted->exec_id);
	return process;
}

int container_signal_all(struct container *container, int number)
{
	process_note_signal(&container->init, number);
	for (struct exec *exec = container->execs; exec; exec = exec->next)
		process_note_signal(&exec->process, number);
	return cgroup_kill(container->id, number);
}

static struct process *process_by_pid(pid_t pid)
{
	for (struct container *container = containers; container; container = container->next) {
		if (container->init.pid == pid)
			return &container->init;
		for (struct exec *exec = container->execs; exec; exec = exec->next)
			if (exec->process.pid == pid)
				return &exec->process;
	}
	return NULL;
}

/* Continues the calls that wait for this container.  May free it. */
static void changed(struct container *container)
{
	if (container->deletes)
		container->remove(container);
	containers_changed();
}

static void init_ended(struct container *container, int status, int64_t at_ns)
{
	if (container->starting) {
		/* The host must hear of the start first. */
		container->start_held = true;
		container->held_status = status;
		container->held_ns = at_ns;
		container->init.pid = 0;
		return;
	}
	process_exited(&container->init, status, at_ns);
	changed(container);
}

static void exec_ended(struct exec *exec, int status, int64_t at_ns)
{
	struct container *container = exec->container;

	process_exited(&exec->process, status, at_ns);
	if (exec->deletes)
		exec->remove(exec);
	changed(container);
}

static void process_ended(struct process *process, int status, int64_t at_ns)
{
	if (process->exec_id[0])
		exec_ended(exec_of(process), status, at_ns);
	else
		init_ended(container_of(process, struct container, init), status, at_ns);
}

bool containers_child_ended(pid_t pid, int status, int64_t at_ns)
{
	struct process *process = process_by_pid(pid);

	if (process)
		process_ended(process, status, at_ns);
	return process;
}

bool container_adopt(struct process *process)
{
	int status;
	int64_t at_ns;

	if (!reaper_status(process->pid, &status, &at_ns))
		return true;
	process_ended(process, status, at_ns);
	return false;
}

void container_begin(struct container *container, const struct call *call)
{
	if (!container->jobs++)
		container->jobs_epoch = call->epoch;
}

void container_end(struct container *container)
{
	container->jobs--;
	changed(container);
}

void containers_wait(struct waiter *waiter)
{
	waiter->next = waiters;
	waiters = waiter;
}

void containers_wait_end(struct waiter *waiter)
{
	struct waiter **place = &waiters;

	while (*place != waiter)
		place = &(*place)->next;
	*place = waiter->next;
}

void containers_changed(void)
{
	struct waiter *waiter = waiters;

	while (waiter) {
		struct waiter *next = waiter->next;

		waiter->changed(waiter);
		waiter = next;
	}
}
