/* Process 1 of the zone, before it becomes the agent. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fakedom.h"
#include "namespace.h"

enum { CHANNEL_FD = 3, SHARED_FD = 4 };

/* Writes to "tasks" if it exists (version 1): a single thread that moves itself needs no lock on all processes of the
 * system.  "cgroup.procs" takes that lock, and waits for an RCU grace period (5 to 20 ms). */
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
			return reason_errno(reason, "join cgroup", options->cgroups[i]);
	}
	return 0;
}

/* A read-only, detached copy of the tree's mount.  Private: under systemd the host's mounts are shared, and pivot_root
 * refuses shared mounts. */
static int open_root(const char *root, struct reason *reason)
{
	struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY, .propagation = MS_PRIVATE };
	int fd = open_tree(AT_FDCWD, root, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

	if (fd < 0)
		return reason_errno(reason, "open_tree", root);
	if (mount_setattr(fd, "", AT_EMPTY_PATH, &read_only, sizeof(read_only)) < 0)
		return reason_errno(reason, "make read-only", root);
	return fd;
}

/* Makes the tree the whole file system. */
static int enter_root(int tree, const char *root, struct reason *reason)
{
	if (mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) < 0)
		return reason_errno(reason, "make private", "/");
	if (move_mount(tree, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return reason_errno(reason, "move_mount", root);
	if (fchdir(tree) < 0)
		return reason_errno(reason, "chdir", root);
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		return reason_errno(reason, "pivot_root", root);
	if (umount2(".", MNT_DETACH) < 0)
		return reason_errno(reason, "umount2", "the host's root");
	if (chdir("/") < 0)
		return reason_errno(reason, "chdir", "/");
	return 0;
}

static const struct node {
	const char *path;
	mode_t mode;
	unsigned int major;
	unsigned int minor;
} nodes[] = {
	{ "/dev/null", S_IFCHR | 0666, 1, 3 },	  { "/dev/zero", S_IFCHR | 0666, 1, 5 },
	{ "/dev/full", S_IFCHR | 0666, 1, 7 },	  { "/dev/random", S_IFCHR | 0666, 1, 8 },
	{ "/dev/urandom", S_IFCHR | 0666, 1, 9 }, { "/dev/tty", S_IFCHR | 0666, 5, 0 },
	/* Text written to the console by name is lost: the host's console is not the zone's. */
	{ "/dev/console", S_IFCHR | 0600, 1, 3 },
};

/* The kernel's misc devices that a zone with its own kernel would have, and that open a new instance for each user.  No
 * disk of the host and no loop device: they belong to others. */
static const struct misc {
	const char *name;
	const char *path;
	mode_t mode;
} miscs[] = {
	{ "fuse", "/dev/fuse", S_IFCHR | 0666 },
	{ "tun", "/dev/net/tun", S_IFCHR | 0666 },
	{ "kvm", "/dev/kvm", S_IFCHR | 0660 },
	{ "loop-control", "/dev/loop-control", S_IFCHR | 0660 },
};

/* Mounts a tmpfs of half the zone's memory, like the default of a kernel with that much memory. */
static int mount_shared_memory(uint64_t memory, struct reason *reason)
{
	char size[64] = "mode=1777";

	if (memory)
		snprintf(size, sizeof(size), "mode=1777,size=%" PRIu64, memory / 2);
	if (mkdir("/dev/shm", 01777) < 0)
		return reason_errno(reason, "mkdir", "/dev/shm");
	if (mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, size) < 0)
		return reason_errno(reason, "mount", "/dev/shm");
	return 0;
}

static int make_misc(const char *name, unsigned int minor, struct reason *reason)
{
	for (size_t i = 0; i < sizeof(miscs) / sizeof(miscs[0]); i++)
		if (strcmp(miscs[i].name, name) == 0 && mknod(miscs[i].path, miscs[i].mode, makedev(10, minor)) < 0)
			return reason_errno(reason, "mknod", miscs[i].path);
	return 0;
}

/* Makes the devices that this kernel has: /proc/misc lists "minor name". */
static int make_miscs(struct reason *reason)
{
	FILE *list = fopen("/proc/misc", "re");
	unsigned int minor;
	char name[64];
	int result = 0;

	if (!list)
		return reason_errno(reason, "open", "/proc/misc");
	while (result == 0 && fscanf(list, "%u %63s", &minor, name) == 2)
		result = make_misc(name, minor, reason);
	fclose(list);
	return result;
}

/* Makes /dev like a kernel would, on a tmpfs of the zone's own. */
static int make_devices(uint64_t memory, struct reason *reason)
{
	if (mount("dev", "/dev", "tmpfs", MS_NOSUID | MS_STRICTATIME, "mode=0755,size=1m") < 0)
		return reason_errno(reason, "mount", "/dev");
	for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++)
		if (mknod(nodes[i].path, nodes[i].mode, makedev(nodes[i].major, nodes[i].minor)) < 0 ||
		    chmod(nodes[i].path, nodes[i].mode & 07777) < 0)
			return reason_errno(reason, "mknod", nodes[i].path);
	if (symlink("pts/ptmx", "/dev/ptmx") < 0)
		return reason_errno(reason, "symlink", "/dev/ptmx");
	if (mkdir("/dev/pts", 0755) < 0 || mkdir("/dev/net", 0755) < 0)
		return reason_errno(reason, "mkdir", "/dev");
	return mount_shared_memory(memory, reason) < 0 ? -1 : make_miscs(reason);
}

static int mount_kernel(uint64_t memory, struct reason *reason)
{
	const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;

	if (mount("proc", "/proc", "proc", flags, NULL) < 0)
		return reason_errno(reason, "mount", "/proc");
	if (mount("sysfs", "/sys", "sysfs", flags, NULL) < 0)
		return reason_errno(reason, "mount", "/sys");
	return make_devices(memory, reason);
}

static int descriptors(int channel, int shared, int console, int ready, int go, struct reason *reason)
{
	int nothing = open("/dev/null", O_RDONLY);
	unsigned int rest = shared < 0 ? SHARED_FD : SHARED_FD + 1;

	if (shared >= 0 && (shared = fcntl(shared, F_DUPFD_CLOEXEC, go + 1)) < 0)
		return reason_errno(reason, "duplicate", "the shared directory");
	channel = fcntl(channel, F_DUPFD_CLOEXEC, go + 1);
	if (nothing < 0 || channel < 0 || dup2(nothing, 0) < 0 || dup2(console, 1) < 0 ||
	    dup2(console, 2) < 0 || dup2(channel, CHANNEL_FD) < 0 ||
	    (shared >= 0 && dup2(shared, SHARED_FD) < 0))
		return reason_errno(reason, "arrange", "descriptors");
	/* 4 < ready < go, see monitor.c.  No other descriptor of the monitor may reach the zone, above all not its report:
	 * the report's number may lie between the two, and the caller waits until the report is closed. */
	if (syscall(SYS_close_range, rest, ready - 1, 0) < 0 ||
	    (go > ready + 1 && syscall(SYS_close_range, ready + 1, go - 1, 0) < 0) ||
	    syscall(SYS_close_range, go + 1, ~0U, 0) < 0)
		return reason_errno(reason, "close", "descriptors");
	return 0;
}

static int prepare(const struct options *options, int channel, int console, int ready, int go,
		   struct reason *reason)
{
	int shared = -1;
	int root;

	/* An unstarted zone ends with its monitor. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return reason_errno(reason, "prctl", "PR_SET_PDEATHSIG");
	if (join_cgroups(options, reason) < 0)
		return -1;
	root = open_root(options->root, reason);
	if (root < 0)
		return -1;
	/* Enter a small namespace before the copy below: the host's namespace has mounts of every zone. */
	if (options->shared && namespace_enter(options->shared, &shared, reason) < 0)
		return -1;
	if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP) < 0)
		return reason_errno(reason, "unshare", "namespaces");
	umask(0);
	if (enter_root(root, options->root, reason) < 0 || mount_kernel(options->memory, reason) < 0 ||
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
