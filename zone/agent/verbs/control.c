/* The small verbs for running processes: SignalProcess, ResizeTerminal, UpdateContainer (`crun update`). */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "channel/call.h"
#include "container/container.h"
#include "container/held.h"
#include "container/job.h"
#include "verbs/verbs.h"

static int send_signal(const SignalProcess *untrusted, struct fault *fault)
{
	struct process *process = containers_process(untrusted->process, "signal", fault);

	if (!process)
		return -1;
	if (untrusted->signal < 1 || untrusted->signal > (uint32_t)SIGRTMAX)
		return fault_set(fault, INVALID_ARGUMENT, "signal: %s: no signal %u", process->container_id,
				 untrusted->signal);
	if (process->state == PREPARING)
		return fault_set(fault, FAILED_PRECONDITION, "signal: %s: it is being made",
				 process->container_id);
	if (untrusted->all &&
	    container_signal_all(container_find(process->container_id), (int)untrusted->signal) < 0)
		return fault_errno(fault, "signal all", process->container_id);
	return untrusted->all ? 0 : process_signal(process, (int)untrusted->signal, false, fault);
}

void signal_process(struct call *call)
{
	const ProcessRef *ref = call->request->signal_process->process;
	struct container *container = ref && id_valid(ref->container_id) ? container_find(ref->container_id) : NULL;
	struct fault fault;

	if (container && held_keep(container, call))
		return;
	call_end(call, send_signal(call->request->signal_process, &fault), &fault);
}

static int resize(const ResizeTerminal *untrusted, struct fault *fault)
{
	struct process *process = containers_process(untrusted->process, "resize terminal", fault);
	struct winsize size = {
		.ws_row = (unsigned short)untrusted->rows,
		.ws_col = (unsigned short)untrusted->columns,
	};

	if (!process)
		return -1;
	if (untrusted->rows > UINT16_MAX || untrusted->columns > UINT16_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "resize terminal: %s: %u rows, %u columns",
				 process->container_id, untrusted->rows, untrusted->columns);
	if (process->terminal < 0)
		return fault_set(fault, FAILED_PRECONDITION, "resize terminal: %s: it has none",
				 process->container_id);
	if (ioctl(process->terminal, TIOCSWINSZ, &size) < 0)
		return fault_errno(fault, "resize terminal", process->container_id);
	return 0;
}

void resize_terminal(struct call *call)
{
	struct fault fault;

	call_end(call, resize(call->request->resize_terminal, &fault), &fault);
}

struct update {
	struct call *call;
	struct container *container;
	struct job job;
};

static void updated(struct job *job, const struct fault *fault)
{
	struct update *update = container_of(job, struct update, job);
	struct container *container = update->container;

	if (fault)
		call_fail(update->call, fault);
	else
		call_done(update->call);
	free(update);
	container_end(container);
}

static struct container *updatable(const UpdateContainer *untrusted, struct fault *fault)
{
	struct container *container = id_valid(untrusted->id) ? container_find(untrusted->id) : NULL;

	if (!container || container->init.state == PREPARING)
		fault_set(fault, NOT_FOUND, "update container: %.*s: no such container", ID_MAX, untrusted->id);
	else if (container->init.state == EXITED || container->deletes)
		fault_set(fault, FAILED_PRECONDITION, "update container: %s: it has ended", container->id);
	else if (!untrusted->resources_json.len)
		fault_set(fault, INVALID_ARGUMENT, "update container: %s: no resources", container->id);
	else
		return container;
	return NULL;
}

/* Puts the resources into a file that crun reads as its standard input.  -1 with the fault. */
static int resources_open(const UpdateContainer *request, struct fault *fault)
{
	int fd = memfd_create("resources", MFD_CLOEXEC);
	size_t done = 0;
	ssize_t n = 0;

	if (fd < 0) {
		fault_errno(fault, "memfd_create", "resources");
		return -1;
	}
	for (; done < request->resources_json.len && n >= 0; done += n > 0 ? (size_t)n : 0)
		n = write(fd, request->resources_json.data + done, request->resources_json.len - done);
	if (n < 0) {
		fault_errno(fault, "write", "resources");
		close(fd);
		return -1;
	}
	return fd;
}

static int start_update(struct update *update, struct fault *fault)
{
	const UpdateContainer *request = update->call->request->update_container;
	const char *arguments[] = { "update", "--resources=/proc/self/fd/0", request->id, NULL };
	int stdio[3] = { -1, -1, -1 };
	int result;

	stdio[0] = resources_open(request, fault);
	if (stdio[0] < 0)
		return -1;
	result = job_start(&update->job, arguments, stdio, fault);
	close(stdio[0]);
	return result;
}

void update_container(struct call *call)
{
	struct fault fault;
	struct container *container = updatable(call->request->update_container, &fault);
	struct update *update;

	if (container && held_keep(container, call))
		return;
	if (container && container->failed) {
		call_done(call);
		return;
	}
	update = container ? calloc(1, sizeof(*update)) : NULL;
	if (container && !update)
		fault_errno(&fault, "update container", container->id);
	if (!update) {
		call_fail(call, &fault);
		return;
	}
	*update = (struct update){ .call = call, .container = container, .job = { .done = updated } };
	if (start_update(update, &fault) < 0) {
		free(update);
		call_fail(call, &fault);
		return;
	}
	container_begin(container, call);
}
