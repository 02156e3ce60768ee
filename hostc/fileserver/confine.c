#include "confine.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fids.h"
#include "filter.h"

enum { NAMESPACES = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP };

static int proc_root = -1;

/* Opens a detached proc.  With processes only: root may write to the other files, and command the host without any
 * capability. */
static int open_proc(int *proc, struct reason *reason)
{
	int system = fsopen("proc", FSOPEN_CLOEXEC);

	if (system < 0 || fsconfig(system, FSCONFIG_SET_STRING, "subset", "pid", 0) < 0 ||
	    fsconfig(system, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return reason_errno(reason, "make", "proc");
	proc_root = fsmount(system, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	close(system);
	*proc = proc_root < 0 ? -1 : openat(proc_root, "self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return *proc < 0 ? reason_errno(reason, "open", "proc") : 0;
}

int confine_view(int mounts, int *proc, struct reason *reason)
{
	if (open_proc(proc, reason) < 0)
		return -1;
	/* The share's root becomes this process's root.  None of the host's own mounts is left. */
	if (setns(mounts, CLONE_NEWNS) < 0)
		return reason_errno(reason, "setns", "the share");
	close(mounts);
	if (unshare(NAMESPACES) < 0)
		return reason_errno(reason, "unshare", "namespaces");
	if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) < 0)
		return reason_errno(reason, "make slave", "the share");
	umask(0);
	return chdir("/") < 0 ? reason_errno(reason, "chdir", "the share") : 0;
}

static int write_map(const char *name)
{
	static const char all[] = "0 0 4294967295";
	int fd = openat(proc_root, name, O_WRONLY | O_CLOEXEC);

	return fd < 0 || write(fd, all, strlen(all)) < 0 ? -1 : 0;
}

/* All ids keep their meaning on the host: the capabilities below hold over every file, and over nothing else.  Only a
 * process outside of the namespace may write this mapping: a copy of this process. */
static int enter_users(struct reason *reason)
{
	int go[2], status;
	pid_t pid;
	char byte;

	if (pipe2(go, O_CLOEXEC) < 0)
		return reason_errno(reason, "pipe", "user namespace");
	pid = fork();
	if (pid == 0) {
		close(go[1]);
		_exit(read(go[0], &byte, 1) == 1 && write_map("1/uid_map") == 0 && write_map("1/gid_map") == 0 ?
			      EXIT_SUCCESS : EXIT_FAILURE);
	}
	if (pid < 0 || unshare(CLONE_NEWUSER) < 0 || write(go[1], "", 1) != 1)
		return reason_errno(reason, "make", "user namespace");
	if (waitpid(pid, &status, 0) < 0 || status) {
		errno = EPERM;
		return reason_errno(reason, "map ids of", "user namespace");
	}
	close(go[0]);
	close(go[1]);
	return 0;
}

static int drop_capabilities(struct reason *reason)
{
	const unsigned int bits = SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_NOROOT |
				  SECBIT_NOROOT_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
				  SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2] = { 0 };
	const uint32_t capabilities = 1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER | 1u << CAP_FSETID |
				      1u << CAP_SETGID | 1u << CAP_SETUID;

	if (setgroups(0, NULL) < 0 || prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) < 0)
		return reason_errno(reason, "set", "secure bits");
	for (unsigned long one = 0; prctl(PR_CAPBSET_READ, one, 0, 0, 0) >= 0; one++)
		if ((one >= 32 || !(capabilities >> one & 1)) && prctl(PR_CAPBSET_DROP, one, 0, 0, 0) < 0)
			return reason_errno(reason, "drop", "capability");
	data[0].effective = data[0].permitted = capabilities;
	if (syscall(SYS_capset, &header, data) < 0)
		return reason_errno(reason, "set", "capabilities");
	return 0;
}

static int limit(struct reason *reason)
{
	static const struct {
		int resource;
		rlim_t most;
	} limits[] = {
		{ RLIMIT_NOFILE, 2 * FIDS_MAX + 64 },
		{ RLIMIT_AS, 64 << 20 },
		{ RLIMIT_CORE, 0 },
		{ RLIMIT_NPROC, 1 },
		{ RLIMIT_MEMLOCK, 0 },
		{ RLIMIT_MSGQUEUE, 0 },
	};

	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		struct rlimit both;

		if (getrlimit(limits[i].resource, &both) < 0)
			return reason_errno(reason, "get", "resource limits");
		if (both.rlim_max > limits[i].most)
			both.rlim_max = limits[i].most;
		both.rlim_cur = both.rlim_max;
		if (setrlimit(limits[i].resource, &both) < 0)
			return reason_errno(reason, "set", "resource limits");
	}
	return 0;
}

static int close_others(const int keep[2], struct reason *reason)
{
	unsigned int low = (unsigned int)(keep[0] < keep[1] ? keep[0] : keep[1]);
	unsigned int high = (unsigned int)(keep[0] < keep[1] ? keep[1] : keep[0]);

	if ((low > 3 && syscall(SYS_close_range, 3, low - 1, 0) < 0) ||
	    (high > low + 1 && syscall(SYS_close_range, low + 1, high - 1, 0) < 0) ||
	    syscall(SYS_close_range, high + 1, ~0U, 0) < 0)
		return reason_errno(reason, "close", "descriptors");
	return 0;
}

int confine_rights(const int keep[2], struct reason *reason)
{
	if (enter_users(reason) < 0 || limit(reason) < 0 || close_others(keep, reason) < 0 ||
	    drop_capabilities(reason) < 0)
		return -1;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return reason_errno(reason, "set", "no_new_privs");
	return filter_calls(reason);
}
