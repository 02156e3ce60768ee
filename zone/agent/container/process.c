#include "container/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel/link.h"
#include "sys/cgroup.h"
#include "sys/file.h"
#include "sys/log.h"

void process_init(struct process *process, const char *container_id, const char *exec_id)
{
	*process = (struct process){ .container_id = container_id, .terminal = -1 };
	strcpy(process->exec_id, exec_id);
}

int process_read_pid(struct process *process, const char *path, struct fault *fault)
{
	char text[32];
	uint64_t pid;

	if (file_read(path, text, sizeof(text)) < 0)
		return fault_errno(fault, "read", path);
	text[strcspn(text, "\n")] = '\0';
	if (!number_parse(text, INT32_MAX, &pid) || pid < 2)
		return fault_set(fault, INTERNAL, "read: %s: no pid in it", path);
	process->pid = (pid_t)pid;
	process->shown_pid = (uint32_t)pid;
	return 0;
}

static int attach_terminal(struct process *process, struct stdio *io, bool fresh, struct fault *fault)
{
	int out = fcntl(io->ours[0], F_DUPFD_CLOEXEC, 3);
	int in = io->with_input ? fcntl(io->ours[0], F_DUPFD_CLOEXEC, 3) : -1;

	if (out < 0 || (io->with_input && in < 0)) {
		fault_errno(fault, "fcntl", "terminal");
		if (out >= 0)
			close(out);
		if (in >= 0)
			close(in);
		return -1;
	}
	process->terminal = io->ours[0];
	io->ours[0] = -1;
	process->out = output_new(out, true, fresh);
	if (in >= 0)
		process->in = input_new(in, true, fresh);
	if (!process->out || (io->with_input && !process->in))
		return fault_errno(fault, "attach", "terminal");
	return 0;
}

int process_attach(struct process *process, struct stdio *io, bool fresh, struct fault *fault)
{
	if (io->terminal)
		return attach_terminal(process, io, fresh, fault);
	if (io->with_input)
		process->in = input_new(io->ours[0], false, fresh);
	process->out = output_new(io->ours[1], false, fresh);
	process->err = output_new(io->ours[2], false, fresh);
	io->ours[0] = io->ours[1] = io->ours[2] = -1;
	if ((io->with_input && !process->in) || !process->out || !process->err)
		return fault_errno(fault, "attach", "standard streams");
	return 0;
}

static void close_terminal(struct process *process)
{
	if (process->terminal >= 0)
		close(process->terminal);
	process->terminal = -1;
}

static void send_exit(const struct process *process)
{
	Event event = EVENT_INIT;
	ProcessExited exited;
	ProcessRef ref;

	process_fill_exited(process, &ref, &exited);
	event.event_case = XENPOD__CHANNEL__V1__EVENT__EVENT_PROCESS_EXITED;
	event.process_exited = &exited;
	link_event(&event);
}

void process_exited(struct process *process, int status, int64_t at_ns)
{
	bool first = process->exec_id[0] == '\0';
	bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;

	process->pid = 0;
	process->state = EXITED;
	process->exited_ns = at_ns;
	process->exit_code = (uint32_t)(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
	/* The kernel counts OOM kills for the whole container: without SIGKILL another process was killed. */
	process->oom_killed = killed && !process->host_killed &&
			      cgroup_oom_kills(process->container_id) > process->oom_kills_before;
	process->zone_oom = process->oom_killed && !cgroup_limit_reached(process->container_id);
	input_finish(process->in);
	/* Processes left behind by an exec may write on; they end with the container. */
	if (first)
		cgroup_kill(process->container_id, SIGKILL);
	if (first || process->terminal >= 0) {
		output_finish(process->out);
		output_finish(process->err);
	}
	close_terminal(process);
	send_exit(process);
}

void process_release(struct process *process)
{
	close_terminal(process);
	input_free(process->in);
	output_free(process->out);
	output_free(process->err);
	process->in = NULL;
	process->out = process->err = NULL;
}

void process_note_signal(struct process *process, int number)
{
	siginfo_t info = { .si_pid = 0 };

	/* A process that has ended, but is not reaped yet, ended by itself or by the kernel. */
	if (number == SIGKILL && process->pid &&
	    waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && !info.si_pid)
		process->host_killed = true;
}

int process_signal(struct process *process, int number, bool group, struct fault *fault)
{
	pid_t target = process->pid;

	if (!target)
		return 0;
	process_note_signal(process, number);
	if (group && getpgid(target) == target)
		target = -target;
	if (kill(target, number) < 0 && errno != ESRCH)
		return fault_errno(fault, "kill", process->container_id);
	return 0;
}

void process_fill_created(const struct process *process, ProcessCreated *message)
{
	*message = (ProcessCreated)PROCESS_CREATED_INIT;
	message->stdin_stream = input_number(process->in);
	message->stdout_stream = output_number(process->out);
	message->stderr_stream = output_number(process->err);
	message->pid = process->shown_pid;
}

void process_fill_ref(const struct process *process, ProcessRef *message)
{
	*message = (ProcessRef)PROCESS_REF_INIT;
	message->container_id = (char *)process->container_id;
	message->exec_id = (char *)process->exec_id;
}

void process_fill_exited(const struct process *process, ProcessRef *ref, ProcessExited *message)
{
	process_fill_ref(process, ref);
	*message = (ProcessExited)PROCESS_EXITED_INIT;
	message->process = ref;
	message->exit_code = process->exit_code;
	message->oom_killed = process->oom_killed;
	message->exited_at_ns = process->exited_ns;
	message->zone_oom = process->zone_oom;
}

void call_reply_created(struct call *call, const struct process *process)
{
	Reply reply = REPLY_INIT;
	ProcessCreated created;

	process_fill_created(process, &created);
	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_CREATED;
	reply.created = &created;
	call_reply(call, &reply);
}
