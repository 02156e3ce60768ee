/* Process 1 of the zone, before it is the agent. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fakedom.h"
#include "namespace.h"

enum { CHANNEL_FD = 3, SHARED_FD = 4 };

/*
 * By "tasks" where there is one (v1): a lone thread that moves itself needs no lock on every process of
 * the system, and the taking of that, by "cgroup.procs", waits for an RCU grace period (5 to 20 ms).
 */
static int join_cgroup(const char *cgroup, const char *file)
{
	char path[4096];
	int fd, result;

	if (snprintf(path, sizeof(path), "%s/%s", cgroup, file) >= (int)sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	result = write(fd, "0", 1) == 1 ? 0 : -1;
	close(fd);
	return result;
}

static int join_cgroups(const struct options *options, struct reason *reason)
{
	for (size_t i = 0; options->cgroups[i]; i++) {
		int result = join_cgroup(options->cgroups[i], "tasks");

		if (result < 0 && errno == ENOENT)
			result = join_cgroup(options->cgroups[i], "cgroup.procs");
		if (result < 0)
			return because(reason, "join cgroup", options->cgroups[i]);
	}
	return 0;
}

/* The tree, read-only, as the only thing that can be seen. */
static int enter_root(const char *root, struct reason *reason)
{
	if (mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) < 0)
		return because(reason, "make private", "/");
	if (mount(root, root, NULL, MS_BIND, NULL) < 0)
		return because(reason, "bind", root);
	if (mount(NULL, root, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) < 0)
		return because(reason, "make read-only", root);
	if (chdir(root) < 0)
		return because(reason, "chdir", root);
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		return because(reason, "pivot_root", root);
	if (umount2(".", MNT_DETACH) < 0)
		return because(reason, "umount2", "the host's root");
	if (chdir("/") < 0)
		return because(reason, "chdir", "/");
	return 0;
}

static int mount_kernel(struct reason *reason)
{
	const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;

	if (mount("proc", "/proc", "proc", flags, NULL) < 0)
		return because(reason, "mount", "/proc");
	if (mount("sysfs", "/sys", "sysfs", flags, NULL) < 0)
		return because(reason, "mount", "/sys");
	return init_devices(reason);
}

static int descriptors(int channel, int shared, int console, int ready, int go, struct reason *reason)
{
	int nothing = open("/dev/null", O_RDONLY);
	unsigned int rest = shared < 0 ? SHARED_FD : SHARED_FD + 1;

	if (shared >= 0 && (shared = fcntl(shared, F_DUPFD_CLOEXEC, go + 1)) < 0)
		return because(reason, "duplicate", "the shared directory");
	channel = fcntl(channel, F_DUPFD_CLOEXEC, go + 1);
	if (nothing < 0 || channel < 0 || dup2(nothing, 0) < 0 || dup2(console, 1) < 0 ||
	    dup2(console, 2) < 0 || dup2(channel, CHANNEL_FD) < 0 ||
	    (shared >= 0 && dup2(shared, SHARED_FD) < 0))
		return because(reason, "arrange", "descriptors");
	/*
	 * 4 < ready < go, see monitor.c; nothing else of the monitor's goes into the zone, least of all its
	 * report, which may lie between the two: the caller waits for its end.
	 */
	if (syscall(SYS_close_range, rest, ready - 1, 0) < 0 ||
	    (go > ready + 1 && syscall(SYS_close_range, ready + 1, go - 1, 0) < 0) ||
	    syscall(SYS_close_range, go + 1, ~0U, 0) < 0)
		return because(reason, "close", "descriptors");
	return 0;
}

static int prepare(const struct options *options, int channel, int console, int ready, int go,
		   struct reason *reason)
{
	int shared = -1;

	/* Until it runs, a zone whose monitor ends must end too. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return because(reason, "prctl", "PR_SET_PDEATHSIG");
	if (join_cgroups(options, reason) < 0 || (options->shared && namespace_mounts(options->shared, &shared, reason) < 0))
		return -1;
	if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP) < 0)
		return because(reason, "unshare", "namespaces");
	umask(0);
	if (enter_root(options->root, reason) < 0 || mount_kernel(reason) < 0 ||
	    descriptors(channel, shared, console, ready, go, reason) < 0)
		return -1;
	umask(022);
	return 0;
}

void init_run(const struct options *options, int channel, int console, int ready, int go)
{
	char *const arguments[] = { (char *)"/init", NULL };
	struct reason reason = { "" };
	char byte;

	if (prepare(options, channel, console, ready, go, &reason) < 0) {
		(void)!write(ready, reason.text, strlen(reason.text));
		return;
	}
	(void)!write(ready, "+", 1);
	close(ready);
	if (read(go, &byte, 1) != 1)
		return;
	if (prctl(PR_SET_PDEATHSIG, 0) < 0)
		return;
	execve("/init", arguments, options->variables);
	perror("fakedom: execve: /init");
}
