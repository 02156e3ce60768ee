#include "container.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "list.h"

static struct container *containers;
static unsigned int container_count;
static unsigned int exec_count;

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
	if (path_set(container->directory, PATH_SIZE, "/run/xenpod/containers/%s", id) < 0) {
		fault_errno(fault, "create container", id);
		free(container);
		return NULL;
	}
	process_init(&container->init, container, "");
	container->next = containers;
	containers = container;
	container_count++;
	return container;
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
	while (container->deletes) {
		struct call *call = container->deletes;

		container->deletes = call->next;
		call_done(call);
	}
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
	process_init(&exec->process, container, exec_id);
	exec->next = container->execs;
	container->execs = exec;
	exec_count++;
	return exec;
}

/* Its waiting calls are answered: it is gone. */
void exec_free(struct exec *exec)
{
	struct exec **place = &exec->process.container->execs;

	while (*place != exec)
		place = &(*place)->next;
	*place = exec->next;
	exec_count--;
	process_release(&exec->process);
	while (exec->deletes) {
		struct call *call = exec->deletes;

		exec->deletes = call->next;
		call_done(call);
	}
	free(exec);
}

struct process *process_by_pid(pid_t pid)
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

void container_process_ended(struct process *process, int status, int64_t at_ns)
{
	struct container *container = process->container;

	if (process == &container->init && container->starting) {
		/* The host hears of the start first. */
		container->start_held = true;
		container->held_status = status;
		container->held_ns = at_ns;
		process->pid = 0;
		return;
	}
	process_exited(process, status, at_ns);
	if (process->exec_id[0])
		exec_deletion_go_on(exec_of(process));
	container_settle(container);
}

void container_begin(struct container *container, const struct call *call)
{
	if (!container->jobs++)
		container->jobs_epoch = call->epoch;
}

void container_end(struct container *container)
{
	container->jobs--;
	container_settle(container);
}

void container_settle(struct container *container)
{
	if (container->deletes)
		deletion_go_on(container);
	lists_go_on();
}
