/* share: serves a zone's shared directory to the zone, by 9P2000.L.
 *
 *   share --namespace FILE --dir DIR --session NAME [--cgroup DIR]... --vchan DOMAIN --ring-order ORDER
 *   share --namespace FILE --dir DIR --session NAME [--cgroup DIR]... --socket DESCRIPTOR
 *
 * The guest sees the root of the mount namespace FILE, with its present and later mounts.  The guest DOMAIN serves a
 * vchan at data/share/NAME of its xenstore directory, with rings of at most 2^ORDER bytes each; tests use a connected
 * socket instead.
 *
 * The command ends as soon as the server runs, with the server's pid in DIR/pid (publish.h, with NAME).  The server
 * waits for the guest, and serves it until either ends.  Then the last line of DIR/log is the reason.  The command
 * holds a lock on DIR/lock until its end: if the lock is free, DIR/pid will not appear any more.
 *
 * The server parses a hostile guest's messages.  Therefore it gives up all other rights before it reads the first byte
 * (confine.h). */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/ordinary.h"
#include "common/publish.h"
#include "confine.h"
#include "link.h"
#include "server.h"

enum { CGROUPS_MAX = 16, SESSION_MAX = 32, NICENESS = 10 /* as in daemonkit/host/children.py */ };

struct options {
	const char *namespace;
	const char *directory;
	const char *session;
	const char *cgroups[CGROUPS_MAX + 1];
	int domain; /* -1: none */
	int ring_order; /* -1: none */
	int socket; /* -1: none */
};

static int refuse(const char *text)
{
	fprintf(stderr, "share: %s\n", text);
	return -1;
}

static int number(const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);

	return *text && !*end && value >= 0 && value <= 65535 ? (int)value : -1;
}

static bool session_valid(const char *name)
{
	size_t length = strlen(name);

	for (size_t i = 0; i < length; i++)
		if (!isalnum((unsigned char)name[i]))
			return false;
	return length > 0 && length <= SESSION_MAX;
}

static int parse(int argc, char **argv, struct options *options)
{
	static const struct option known[] = {
		{ "namespace", required_argument, NULL, 'n' }, { "dir", required_argument, NULL, 'd' },
		{ "session", required_argument, NULL, 's' },   { "cgroup", required_argument, NULL, 'c' },
		{ "vchan", required_argument, NULL, 'v' },     { "socket", required_argument, NULL, 'f' },
		{ "ring-order", required_argument, NULL, 'r' }, { NULL, 0, NULL, 0 },
	};
	size_t cgroups = 0;
	int which;

	while ((which = getopt_long(argc, argv, "", known, NULL)) >= 0) {
		if (which == 'n')
			options->namespace = optarg;
		else if (which == 'd')
			options->directory = optarg;
		else if (which == 's' && session_valid(optarg))
			options->session = optarg;
		else if (which == 'c' && cgroups < CGROUPS_MAX)
			options->cgroups[cgroups++] = optarg;
		else if (which == 'v')
			options->domain = number(optarg);
		else if (which == 'r')
			options->ring_order = number(optarg);
		else if (which == 'f')
			options->socket = number(optarg);
		else
			return refuse("an option that is unknown, not valid, or one too many");
	}
	if (!options->namespace || !options->directory || !options->session || optind != argc ||
	    (options->domain < 0) == (options->socket < 0) || (options->domain < 0) != (options->ring_order < 0))
		return refuse("usage: share --namespace FILE --dir DIR --session NAME [--cgroup DIR]... "
			      "--vchan DOMAIN --ring-order ORDER | --socket DESCRIPTOR");
	return 0;
}

static int enter_cgroups(const struct options *options, struct reason *reason)
{
	for (const char *const *group = options->cgroups; *group; group++) {
		char path[4096];
		int fd;

		snprintf(path, sizeof(path), "%s/cgroup.procs", *group);
		fd = open(path, O_WRONLY | O_CLOEXEC);
		if (fd < 0 || write(fd, "0", 1) != 1)
			return reason_errno(reason, "enter cgroup", path);
		close(fd);
	}
	return 0;
}

/* Holds one request and one reply in memory, and never more. */
static const char *serve(struct link *link)
{
	static uint8_t in[MSIZE_MAX], out[MSIZE_MAX];
	uint32_t msize = MSIZE_MAX;

	for (;;) {
		struct reader size = { in, 4, false };
		uint32_t length;
		size_t answer;

		if (link_read(link, in, 4) < 0)
			return "the zone closed the connection";
		length = get32(&size);
		if (length < HEADER || length > msize)
			return "the zone broke the protocol: a message of an impossible length";
		if (link_read(link, in + 4, length - 4) < 0)
			return "the zone closed the connection";
		answer = server_answer(in, length, out, &msize);
		if (!answer)
			return "the zone broke the protocol: a message that is none";
		if (link_write(link, out, answer) < 0)
			return "the zone closed the connection";
	}
}

static int say(const char *text)
{
	(void)!write(STDERR_FILENO, "share: ", 7);
	(void)!write(STDERR_FILENO, text, strlen(text));
	(void)!write(STDERR_FILENO, "\n", 1);
	return EXIT_FAILURE;
}

static int prepare(const struct options *options, int mounts, struct link *link, struct reason *reason)
{
	int keep[2], proc = -1;
	char path[96];

	snprintf(path, sizeof(path), "/local/domain/%d/data/share/%s", options->domain, options->session);
	if (options->socket >= 0 ? link_open_socket(link, options->socket, reason) < 0 :
				   link_open_vchan(link, options->domain, path, options->ring_order, reason) < 0)
		return -1;
	if (confine_view(mounts, &proc, reason) < 0)
		return -1;
	keep[0] = link->fd;
	keep[1] = proc;
	server_open(proc);
	return confine_rights(keep, reason);
}

/* A guest can keep its server busy; dom0's work for all zones has precedence.  The kernel may weigh whole sessions
 * against each other, by a separate niceness (sched(7), "The autogroup feature"). */
static void make_way(void)
{
	int fd = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);

	(void)setpriority(PRIO_PROCESS, 0, NICENESS);
	if (fd < 0)
		return;
	(void)!dprintf(fd, "%d", NICENESS);
	close(fd);
}

/* The first process of its pid namespace: all its children end with it. */
static _Noreturn void run(const struct options *options, int mounts, int log, int go)
{
	struct reason reason = { "" };
	struct link link = { -1, NULL };
	char byte;

	signal(SIGPIPE, SIG_IGN);
	if (read(go, &byte, 1) != 1) /* the pid was not recorded, and will never be */
		_exit(EXIT_FAILURE);
	close(go);
	setsid();
	make_way();
	if (dup2(open("/dev/null", O_RDWR | O_CLOEXEC), STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
	    dup2(log, STDERR_FILENO) < 0)
		_exit(EXIT_FAILURE);
	_exit(say(prepare(options, mounts, &link, &reason) < 0 ? reason.text : serve(&link)));
}

/* Makes the server's process, records its pid, and lets it go on. */
static int start(const struct options *options, struct reason *reason)
{
	int mounts, log, lock, go[2];
	int directory = open(options->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long pid;

	if (directory < 0)
		return reason_errno(reason, "open", options->directory);
	lock = openat(directory, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0)
		return reason_errno(reason, "lock", options->directory);
	log = openat(directory, "log", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	if (log < 0 || pipe2(go, O_CLOEXEC) < 0)
		return reason_errno(reason, "open", "log");
	mounts = open(options->namespace, O_RDONLY | O_CLOEXEC);
	if (mounts < 0 || ioctl(mounts, NS_GET_NSTYPE) != CLONE_NEWNS)
		return reason_errno(reason, "use as mount namespace", options->namespace);
	if (enter_cgroups(options, reason) < 0)
		return -1;
	/* Like fork, but the child is the first process of a pid namespace. */
	pid = syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, 0);
	if (pid == 0) {
		close(go[1]);
		close(lock);
		run(options, mounts, log, go[0]);
	}
	if (pid < 0)
		return reason_errno(reason, "clone", "server");
	if (publish_process(directory, (pid_t)pid, options->session, reason) < 0)
		return -1;
	return write(go[1], "+", 1) == 1 ? 0 : reason_errno(reason, "start", "server");
}

int main(int argc, char **argv)
{
	struct options options = { .domain = -1, .ring_order = -1, .socket = -1 };
	struct reason reason = { "" };

	if (parse(argc, argv, &options) < 0)
		return 2;
	ordinary_process();
	if (start(&options, &reason) < 0) {
		refuse(reason.text);
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}
