#include "sys/reaper.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys/log.h"
#include "sys/loop.h"

enum { ORPHANS_MAX = 4096 };

static const struct reaper_hooks *hooks;

/* Ended but unknown processes: a child of crun may end before crun has written its pid. */
static struct orphan {
	pid_t pid;
	int status;
	int64_t at_ns;
} *orphans;
static size_t orphan_count;
static size_t orphan_space;

static void orphan_add(pid_t pid, int status, int64_t at_ns)
{
	struct orphan *more;

	if (orphan_count == orphan_space && orphan_space < ORPHANS_MAX) {
		size_t space = orphan_space ? orphan_space * 2 : 64;

		more = realloc(orphans, space * sizeof(*orphans));
		if (more) {
			orphans = more;
			orphan_space = space;
		}
	}
	if (orphan_count == orphan_space) {
		if (!orphan_space)
			return;
		memmove(orphans, orphans + 1, --orphan_count * sizeof(*orphans));
	}
	orphans[orphan_count++] = (struct orphan){ pid, status, at_ns };
}

static void orphans_forget(void)
{
	free(orphans);
	orphans = NULL;
	orphan_count = orphan_space = 0;
}

/* Whether a child with this pid is still to be waited for; then an old status belongs to another process. */
static bool is_child(pid_t pid)
{
	siginfo_t info;

	return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

bool reaper_status(pid_t pid, int *status, int64_t *at_ns)
{
	if (is_child(pid))
		return false;
	for (size_t i = orphan_count; i-- > 0;)
		if (orphans[i].pid == pid) {
			orphans[i].pid = 0;
			*status = orphans[i].status;
			*at_ns = orphans[i].at_ns;
			return true;
		}
	log_line("process %d: it ended, but its status was lost", (int)pid);
	*status = 255 << 8;
	*at_ns = wall_ns();
	return true;
}

static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		int64_t at_ns = wall_ns();

		if (!hooks->ended(pid, status, at_ns) && hooks->keeps_unknown())
			orphan_add(pid, status, at_ns);
	}
	if (pid < 0 && errno != ECHILD)
		log_errno("waitpid", "children");
	hooks->collected();
	if (!hooks->keeps_unknown())
		orphans_forget();
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
		log_errno("read", "signals");
	reap();
	if (stop)
		hooks->stop();
}

static struct watch signals = { .fd = -1, .ready = signals_ready };

int reaper_open(const struct reaper_hooks *told)
{
	/* Signals that ask an init to power off: from the hypervisor, ctrl-alt-delete, an operator. */
	static const int taken[] = { SIGCHLD, SIGTERM, SIGINT, SIGPWR };
	static const int faults[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS };
	sigset_t set, all;

	hooks = told;
	sigfillset(&all);
	for (size_t i = 0; i < ARRAY_LEN(faults); i++)
		sigdelset(&all, faults[i]);
	if (sigprocmask(SIG_SETMASK, &all, NULL) < 0) {
		log_errno("sigprocmask", "all signals");
		return -1;
	}
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR) {
		log_errno("signal", "SIGPIPE");
		return -1;
	}
	sigemptyset(&set);
	for (size_t i = 0; i < ARRAY_LEN(taken); i++)
		sigaddset(&set, taken[i]);
	signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals.fd < 0 || loop_watch(&signals, EPOLLIN) < 0) {
		log_errno("signalfd", "signals");
		return -1;
	}
	return 0;
}
