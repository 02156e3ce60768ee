#include "sys/pod_userns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/log.h"
#include "sys/netlink.h"

#define DIRECTORY "/run/xenpod/ns"

/* The pod's ids 0 to length - 1 are the zone's ids from host_id on. */
struct mapping {
	uint32_t host_id, length;
};

static struct {
	bool made;
	struct mapping ids;
	int user, network, ipc, outside;
} pod = { .user = -1, .network = -1, .ipc = -1, .outside = -1 };

bool pod_userns_exists(void)
{
	return pod.made;
}

int pod_userns_fd(void)
{
	return pod.user;
}

int pod_network_fd(void)
{
	return pod.made ? pod.network : -1;
}

uid_t pod_userns_map_id(uid_t id)
{
	if (!pod.made)
		return id;
	if (id < pod.ids.length)
		return pod.ids.host_id + id;
	return pod.ids.host_id ? pod.ids.host_id - 1 : id;
}

int pod_userns_chown(const char *path)
{
	return pod.made ? lchown(path, pod.ids.host_id, pod.ids.host_id) : 0;
}

int pod_userns_fchown(int fd)
{
	return pod.made ? fchown(fd, pod.ids.host_id, pod.ids.host_id) : 0;
}

int pod_userns_write(const char *path, const char *text)
{
	int result = file_overwrite(path, text);
	int error;

	if (result == 0 || errno != EACCES || !pod.made)
		return result;
	if (seteuid(pod.ids.host_id) < 0)
		return -1;
	result = file_overwrite(path, text);
	error = errno;
	if (seteuid(0) < 0)
		abort();
	errno = error;
	return result;
}

int pod_network_leave(void)
{
	return pod.made ? setns(pod.outside, CLONE_NEWNET) : 0;
}

void pod_network_enter(void)
{
	if (pod.made && setns(pod.network, CLONE_NEWNET) < 0) {
		log_errno("enter", "the pod's network");
		abort();
	}
}

int pod_network_listen_outside(int protocol, uint32_t groups)
{
	int fd;

	if (pod_network_leave() < 0)
		return -1;
	fd = netlink_open(protocol, groups);
	pod_network_enter();
	return fd;
}

/* Makes the namespaces and reports by one byte: an errno, or 0.  Then stays until killed: others can then open the
 * namespaces below /proc. */
static _Noreturn void hold_namespaces(int report)
{
	char failed = 0;

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC) < 0)
		failed = (char)errno;
	if (write(report, &failed, 1) == 1 && !failed)
		for (;;)
			pause();
	_exit(1);
}

static int write_map(pid_t pid, const char *kind, const struct mapping *mapping)
{
	char path[64], line[64];

	snprintf(path, sizeof(path), "/proc/%d/%s_map", (int)pid, kind);
	snprintf(line, sizeof(line), "0 %u %u\n", mapping->host_id, mapping->length);
	return file_overwrite(path, line);
}

/* Keeps a namespace open, and bound to a path for crun. */
static int keep(pid_t pid, const char *kind, int *fd, struct fault *fault)
{
	char from[64], to[64];

	snprintf(from, sizeof(from), "/proc/%d/ns/%s", (int)pid, kind);
	snprintf(to, sizeof(to), DIRECTORY "/%s", kind);
	*fd = open(from, O_RDONLY | O_CLOEXEC);
	if (*fd < 0)
		return fault_errno(fault, "open", from);
	if (file_write(to, "", 0, 0444) < 0 || mount(from, to, NULL, MS_BIND, NULL) < 0)
		return fault_errno(fault, "keep namespace", to);
	return 0;
}

static int keep_all(pid_t pid, const struct mapping *mapping, struct fault *fault)
{
	if (write_map(pid, "uid", mapping) < 0 || write_map(pid, "gid", mapping) < 0)
		return fault_errno(fault, "write id map", "user namespace");
	if (mkdir(DIRECTORY, 0755) < 0 && errno != EEXIST)
		return fault_errno(fault, "mkdir", DIRECTORY);
	pod.outside = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	if (pod.outside < 0)
		return fault_errno(fault, "open", "/proc/self/ns/net");
	if (keep(pid, "user", &pod.user, fault) < 0 || keep(pid, "net", &pod.network, fault) < 0 ||
	    keep(pid, "ipc", &pod.ipc, fault) < 0)
		return -1;
	if (setns(pod.network, CLONE_NEWNET) < 0 || setns(pod.ipc, CLONE_NEWIPC) < 0)
		return fault_errno(fault, "setns", "the pod's namespaces");
	if (interface_loopback_up() < 0)
		return fault_errno(fault, "set interface up", "lo");
	return 0;
}

static int hold_and_keep(int ends[2], const struct mapping *mapping, struct fault *fault)
{
	pid_t pid = fork();
	char failed = EPIPE;
	int result = -1;

	if (pid < 0)
		return fault_errno(fault, "fork", "for a user namespace");
	if (pid == 0)
		hold_namespaces(ends[1]);
	close(ends[1]);
	ends[1] = -1;
	if (read(ends[0], &failed, 1) == 1 && !failed) {
		result = keep_all(pid, mapping, fault);
	} else {
		errno = failed;
		/* ENOSPC, EPERM: user.max_user_namespaces; EINVAL: a kernel without user namespaces */
		result = fault_set(fault, FAILED_PRECONDITION, "make user namespace: this zone's kernel: %s",
				   strerror(failed));
	}
	if (kill(pid, SIGKILL) < 0 || waitpid(pid, NULL, 0) < 0)
		return fault_errno(fault, "end", "the namespaces' first process");
	return result;
}

static int make(const struct mapping *mapping, struct fault *fault)
{
	int ends[2];
	int result;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return fault_errno(fault, "pipe2", "for a user namespace");
	result = hold_and_keep(ends, mapping, fault);
	close(ends[0]);
	if (ends[1] >= 0)
		close(ends[1]);
	return result;
}

int pod_userns_make(uint32_t host_id, uint32_t length, struct fault *fault)
{
	const struct mapping ids = { host_id, length };

	if (!length || host_id > UINT32_MAX - length)
		return fault_set(fault, INVALID_ARGUMENT, "make user namespace: %u ids from %u", length, host_id);
	if (pod.made || pod.user >= 0) {
		if (pod.made && pod.ids.host_id == host_id && pod.ids.length == length)
			return 0;
		return fault_set(fault, FAILED_PRECONDITION,
				 "make user namespace: the zone has one already, or could not make it");
	}
	if (make(&ids, fault) < 0)
		return -1;
	pod.made = true;
	pod.ids = ids;
	return 0;
}
