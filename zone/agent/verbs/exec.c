/* ExecProcess: `crun exec --detach`.  And DeleteExec. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "channel/call.h"
#include "container/container.h"
#include "container/job.h"
#include "sys/cgroup.h"
#include "sys/file.h"
#include "sys/log.h"
#include "verbs/verbs.h"

enum { EXEC_PATH_SIZE = PATH_SIZE + ID_MAX + 16 };

struct execution {
	struct call *call;
	struct exec *exec;
	struct job job;
	struct stdio io;
	char process_path[EXEC_PATH_SIZE];
	char pid_path[EXEC_PATH_SIZE];
};

static void remove_file(const char *path)
{
	if (unlink(path) < 0 && errno != ENOENT)
		log_errno("unlink", path);
}

static void clean_up(struct execution *execution)
{
	remove_file(execution->process_path);
	remove_file(execution->pid_path);
	stdio_close(&execution->io);
	free(execution);
}

static int take_over(struct execution *execution, struct fault *fault)
{
	struct process *process = &execution->exec->process;

	if (process_read_pid(process, execution->pid_path, fault) < 0)
		return -1;
	if (stdio_receive_terminal(&execution->io, fault) == 0 &&
	    process_attach(process, &execution->io, call_is_fresh(execution->call), fault) == 0)
		return 0;
	if (kill(process->pid, SIGKILL) < 0 && errno != ESRCH)
		log_errno("kill", "an exec that cannot be attached");
	return -1;
}

/* Continues the removal of an exec: kills the process, or forgets an ended one. */
static void remove_exec(struct exec *exec)
{
	struct fault fault;

	if (exec->process.state == PREPARING)
		return;
	if (!exec->process.pid) {
		exec_free(exec);
		return;
	}
	if (process_signal(&exec->process, SIGKILL, true, &fault) < 0)
		log_line("%s", fault.text);
}

static void executed(struct job *job, const struct fault *failure)
{
	struct execution *execution = container_of(job, struct execution, job);
	struct exec *exec = execution->exec;
	struct container *container = exec->container;
	struct call *call = execution->call;
	struct fault fault;
	int result;

	job_note(job, &call->steps, STEP(CRUN_EXEC));
	if (failure)
		fault = *failure;
	result = failure ? -1 : take_over(execution, &fault);
	clean_up(execution);
	if (result < 0) {
		call_fail(call, &fault);
		exec_free(exec);
	} else {
		exec->process.state = RUNNING;
		call_reply_created(call, &exec->process);
		if (container_adopt(&exec->process) && exec->deletes)
			remove_exec(exec);
	}
	container_end(container);
}

static int prepare(struct execution *execution, ExecProcess *request, struct fault *fault)
{
	const struct process *process = &execution->exec->process;
	const char *directory = execution->exec->container->directory;

	if (path_format(execution->process_path, EXEC_PATH_SIZE, "%s/exec-%s.json", directory, process->exec_id) < 0 ||
	    path_format(execution->pid_path, EXEC_PATH_SIZE, "%s/exec-%s.pid", directory, process->exec_id) < 0)
		return fault_errno(fault, "exec", process->exec_id);
	if (file_write(execution->process_path, request->process_json.data, request->process_json.len, 0600) < 0)
		return fault_errno(fault, "write", execution->process_path);
	return stdio_open(&execution->io, request->tty, request->stdin, fault);
}

static int run_crun(struct execution *execution, struct fault *fault)
{
	const char *arguments[] = {
		"exec",	    "--detach",		     "--process", execution->process_path,
		"--pid-file", execution->pid_path, NULL,	NULL,
		NULL,	    NULL,
	};
	size_t count = 6;

	if (execution->io.terminal) {
		arguments[count++] = "--console-socket";
		arguments[count++] = execution->io.console_path;
	}
	arguments[count] = execution->exec->container->id;
	execution->job.done = executed;
	/* crun exec ignores the configuration's oomScoreAdj. */
	execution->job.oom_like = execution->exec->container->init.pid;
	if (job_start(&execution->job, arguments, execution->io.child, fault) < 0)
		return -1;
	stdio_close_child_ends(&execution->io);
	return 0;
}

static struct container *container_for(const ExecProcess *untrusted, struct fault *fault)
{
	ProcessRef *ref = untrusted->process;
	struct container *container;

	if (!ref || !id_valid(ref->container_id) || !id_valid(ref->exec_id)) {
		fault_set(fault, INVALID_ARGUMENT, "exec: not a process's name");
		return NULL;
	}
	container = container_find(ref->container_id);
	if (!untrusted->process_json.len)
		fault_set(fault, INVALID_ARGUMENT, "exec: %s: no process", ref->exec_id);
	else if (!container)
		fault_set(fault, NOT_FOUND, "exec: %s: no such container", ref->container_id);
	else if (container->init.state != RUNNING || container->deletes)
		fault_set(fault, FAILED_PRECONDITION, "exec: %s: it does not run", container->id);
	else if (container_process(container, ref->exec_id))
		fault_set(fault, ALREADY_EXISTS, "exec: %s: it exists", ref->exec_id);
	else
		return container;
	return NULL;
}

static int begin(struct call *call, struct fault *fault)
{
	ExecProcess *request = call->request->exec_process;
	struct container *container = container_for(request, fault);
	struct execution *execution;

	if (!container)
		return -1;
	execution = calloc(1, sizeof(*execution));
	if (!execution)
		return fault_errno(fault, "exec", container->id);
	execution->call = call;
	execution->io = STDIO_NONE;
	execution->exec = exec_new(container, request->process->exec_id, fault);
	if (!execution->exec) {
		free(execution);
		return -1;
	}
	execution->exec->process.started_ns = wall_ns();
	execution->exec->process.oom_kills_before = cgroup_oom_kills(container->id);
	if (prepare(execution, request, fault) == 0 && run_crun(execution, fault) == 0) {
		container_begin(container, call);
		return 0;
	}
	exec_free(execution->exec);
	clean_up(execution);
	return -1;
}

void exec_process(struct call *call)
{
	struct fault fault;

	if (begin(call, &fault) < 0)
		call_fail(call, &fault);
}

void delete_exec(struct call *call)
{
	ProcessRef *ref = call->request->delete_exec->process;
	struct container *container;
	struct process *process;
	struct fault fault;

	if (!ref || !id_valid(ref->container_id) || !id_valid(ref->exec_id)) {
		fault_set(&fault, INVALID_ARGUMENT, "delete exec: not a process's name");
		call_fail(call, &fault);
		return;
	}
	container = container_find(ref->container_id);
	process = container ? container_process(container, ref->exec_id) : NULL;
	if (!process) {
		call_done(call);
		return;
	}
	call->next = exec_of(process)->deletes;
	exec_of(process)->deletes = call;
	exec_of(process)->remove = remove_exec;
	remove_exec(exec_of(process));
}
