/* SignalProcess and ResizeTerminal. */
#include <signal.h>
#include <sys/ioctl.h>

#include "channel/call.h"
#include "container/container.h"
#include "container/held.h"
#include "sys/cgroup.h"
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
	if (untrusted->all && cgroup_kill(process->container_id, (int)untrusted->signal) < 0)
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
