/* The zone's parent: makes the zone, keeps its console, reports its end. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fakedom.h"
#include "common/publish.h"

/* Inherited descriptors are moved above this number, out of the way of the fixed numbers. */
enum { HIGH_FD = 100 };

struct zone {
	int directory;
	int channel;
	int console; /* read end */
	int log;
	int go; /* write end */
	pid_t pid;
};

/* Binds from within the socket's directory: its path may be longer than an address can hold. */
static int open_channel(struct zone *zone, const char *directory, struct reason *reason)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "channel.sock" };

	zone->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (zone->directory < 0 || fchdir(zone->directory) < 0)
		return reason_errno(reason, "open", directory);
	zone->channel = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (zone->channel < 0)
		return reason_errno(reason, "socket", "channel.sock");
	umask(0177);
	if (bind(zone->channel, (struct sockaddr *)&address, sizeof(address)) < 0)
		return reason_errno(reason, "bind", "channel.sock");
	umask(022);
	if (listen(zone->channel, 8) < 0)
		return reason_errno(reason, "listen", "channel.sock");
	zone->log = console_open(zone->directory);
	if (zone->log < 0)
		return reason_errno(reason, "open", "console.log");
	return 0;
}

static pid_t fork_init(const struct options *options, struct zone *zone, int console, int ready, int go)
{
	/* Like fork, but the child is the first process of a pid namespace. */
	long pid = syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, 0);

	if (pid == 0) {
		ready = fcntl(ready, F_DUPFD_CLOEXEC, HIGH_FD);
		go = fcntl(go, F_DUPFD_CLOEXEC, ready + 1);
		if (ready >= 0 && go >= 0)
			init_run(options, zone->channel, console, ready, go);
		_exit(1);
	}
	return (pid_t)pid;
}

static int await_ready(int ready, struct reason *reason)
{
	char text[REASON_SIZE];
	ssize_t n;

	do
		n = read(ready, text, sizeof(text) - 1);
	while (n < 0 && errno == EINTR);
	if (n == 1 && text[0] == '+')
		return 0;
	if (n <= 0) {
		snprintf(reason->text, sizeof(reason->text), "the zone's first process ended before it was ready");
		return -1;
	}
	text[n] = '\0';
	memcpy(reason->text, text, (size_t)n + 1);
	return -1;
}

/* SIGSTOP from a parent outside the namespace works on an init.  After it the order to go on cannot come too early. */
static int stop_and_let_go(struct zone *zone, struct reason *reason)
{
	int status;

	if (kill(zone->pid, SIGSTOP) < 0)
		return reason_errno(reason, "kill", "SIGSTOP");
	if (waitpid(zone->pid, &status, WUNTRACED) != zone->pid || !WIFSTOPPED(status)) {
		snprintf(reason->text, sizeof(reason->text), "the zone's first process did not stop");
		return -1;
	}
	if (write(zone->go, "+", 1) != 1)
		return reason_errno(reason, "write", "order to go on");
	close(zone->go);
	return 0;
}

static int make_zone(const struct options *options, struct zone *zone, struct reason *reason)
{
	int console[2], ready[2], go[2];
	int result;

	if (open_channel(zone, options->directory, reason) < 0)
		return -1;
	if (pipe2(console, O_CLOEXEC) < 0 || pipe2(ready, O_CLOEXEC) < 0 || pipe2(go, O_CLOEXEC) < 0)
		return reason_errno(reason, "pipe2", "zone");
	zone->console = console[0];
	zone->go = go[1];
	zone->pid = fork_init(options, zone, console[1], ready[1], go[0]);
	if (zone->pid < 0)
		return reason_errno(reason, "clone", "zone");
	close(console[1]);
	close(ready[1]);
	close(go[0]);
	close(zone->channel);
	result = await_ready(ready[0], reason);
	close(ready[0]);
	if (result == 0 && stop_and_let_go(zone, reason) == 0 && publish_process(zone->directory, zone->pid, "", reason) == 0)
		return 0;
	kill(zone->pid, SIGKILL);
	waitpid(zone->pid, NULL, 0);
	return -1;
}

/* reboot(2) in a pid namespace ends its init with a signal that depends on the request. */
static const char *ending(int status)
{
	if (!WIFSIGNALED(status))
		return "crash\n";
	switch (WTERMSIG(status)) {
	case SIGINT:
		return "poweroff\n";
	case SIGHUP:
		return "reboot\n";
	case SIGKILL:
		return "killed\n";
	default:
		return "crash\n";
	}
}

/* A guest kernel's last words when its first process ends, with the same status (do_exit of Linux).  A zone killed from
 * outside writes none. */
static void panic_word(const struct zone *zone, int status)
{
	if (strcmp(ending(status), "crash\n") == 0)
		dprintf(zone->log, "Kernel panic - not syncing: Attempted to kill init! exitcode=0x%08x\n",
			(unsigned int)status);
}

static void watch_over(const struct zone *zone)
{
	struct pollfd console = { .fd = zone->console, .events = POLLIN };
	struct reason reason;
	int status;

	/* The console ends with the zone's last process. */
	while (poll(&console, 1, -1) > 0 || errno == EINTR) {
		if (console.revents & POLLIN)
			console_take(zone->log, zone->console);
		else if (console.revents)
			break;
	}
	while (waitpid(zone->pid, &status, 0) < 0)
		if (errno != EINTR)
			return;
	panic_word(zone, status);
	(void)publish(zone->directory, "status", ending(status), &reason);
}

/* Keeps only the report of the caller's resources: a new session, no other descriptor, default signals. */
static int leave_caller(int *report)
{
	int nothing = open("/dev/null", O_RDWR);

	int report_fd = fcntl(*report, F_DUPFD_CLOEXEC, HIGH_FD);

	if (nothing < 0 || report_fd < 0 || setsid() < 0)
		return -1;
	*report = report_fd;
	if (dup2(nothing, 0) < 0 || dup2(nothing, 1) < 0 || dup2(nothing, 2) < 0)
		return -1;
	if (syscall(SYS_close_range, 3, report_fd - 1, 0) < 0 || syscall(SYS_close_range, report_fd + 1, ~0U, 0) < 0)
		return -1;
	for (int number = 1; number < 32; number++)
		signal(number, SIG_DFL);
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	return 0;
}

void monitor_run(const struct options *options, int report)
{
	struct zone zone = { .pid = -1 };
	struct reason reason = { "" };

	if (leave_caller(&report) < 0) {
		reason_errno(&reason, "leave the caller", "session");
		(void)!write(report, reason.text, strlen(reason.text));
		return;
	}
	if (make_zone(options, &zone, &reason) < 0) {
		(void)!write(report, reason.text, strlen(reason.text));
		return;
	}
	(void)!write(report, "+", 1);
	close(report);
	watch_over(&zone);
	_exit(0);
}
