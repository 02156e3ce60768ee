#include "reaper.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "container.h"
#include "job.h"
#include "loop.h"
#include "power.h"
#include "say.h"

enum { ORPHANS_MAX = 4096 };

/* Ended processes that nobody has asked for (yet): crun's children may end before crun has said
 * who they are. */
static struct orphan {
	pid_t pid;
	int status;
	int64_t at_ns;
} *orphans;
static size_t orphan_count;
static size_t orphan_room;

static void orphan_add(pid_t pid, int status)
{
	struct orphan *more;

	if (orphan_count == orphan_room && orphan_room < ORPHANS_MAX) {
		size_t room = orphan_room ? orphan_room * 2 : 64;

		more = realloc(orphans, room * sizeof(*orphans));
		if (more) {
			orphans = more;
			orphan_room = room;
		}
	}
	if (orphan_count == orphan_room) {
		if (!orphan_room)
			return;
		memmove(orphans, orphans + 1, --orphan_count * sizeof(*orphans));
	}
	orphans[orphan_count++] = (struct orphan){ pid, status, wall_ns() };
}

static void orphans_forget(void)
{
	free(orphans);
	orphans = NULL;
	orphan_count = orphan_room = 0;
}

/* Whether a child with this pid is still to be waited for (then an old status is another's). */
static bool is_child(pid_t pid)
{
	siginfo_t info;

	return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

bool reaper_adopt(struct process *process)
{
	pid_t pid = process->pid;

	if (is_child(pid))
		return true;
	for (size_t i = orphan_count; i-- > 0;)
		if (orphans[i].pid == pid) {
			struct orphan orphan = orphans[i];

			orphans[i].pid = 0;
			container_process_ended(process, orphan.status, orphan.at_ns);
			return false;
		}
	say("process %d: it ended, but its status was lost", (int)pid);
	container_process_ended(process, 255 << 8, wall_ns());
	return false;
}

static void reap(void)
{
	struct process *process;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (job_reaped(pid, status))
			continue;
		process = process_by_pid(pid);
		if (process)
			container_process_ended(process, status, wall_ns());
		else if (jobs_running())
			orphan_add(pid, status);
	}
	if (pid < 0 && errno != ECHILD)
		say_errno("waitpid", "children");
	jobs_finish();
	if (!jobs_running())
		orphans_forget();
	power_children_reaped();
}

static void signals_ready(struct watch *watch, uint32_t events)
{
	struct signalfd_siginfo info[16];
	ssize_t n;
	bool stop = false;

	(void)events;
	while ((n = read(watch->fd, info, sizeof(info))) > 0)
		for (size_t i = 0; i < (size_t)n / sizeof(info[0]); i++)
			stop = stop || info[i].ssi_signo != SIGCHLD;
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		say_errno("read", "signals");
	reap();
	if (stop)
		power_begin();
}

static struct watch signals = { .fd = -1, .ready = signals_ready };

int reaper_open(void)
{
	/* What tells an init to power off: the hypervisor's key, ctrl-alt-delete, an operator. */
	static const int taken[] = { SIGCHLD, SIGTERM, SIGINT, SIGPWR };
	static const int faults[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS };
	sigset_t set, all;

	sigfillset(&all);
	for (size_t i = 0; i < ARRAY_LEN(faults); i++)
		sigdelset(&all, faults[i]);
	if (sigprocmask(SIG_SETMASK, &all, NULL) < 0) {
		say_errno("sigprocmask", "all signals");
		return -1;
	}
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR) {
		say_errno("signal", "SIGPIPE");
		return -1;
	}
	sigemptyset(&set);
	for (size_t i = 0; i < ARRAY_LEN(taken); i++)
		sigaddset(&set, taken[i]);
	signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals.fd < 0 || loop_watch(&signals, EPOLLIN) < 0) {
		say_errno("signalfd", "signals");
		return -1;
	}
	return 0;
}
