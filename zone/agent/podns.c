#include "podns.h"

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

#include "file.h"
#include "netlink.h"
#include "network.h"
#include "say.h"

#define DIRECTORY "/run/xenpod/ns"

static struct {
	bool made;
	uint32_t host_id, length;
	int user, network, ipc, outside;
} pod = { .user = -1, .network = -1, .ipc = -1, .outside = -1 };

bool podns_is(void)
{
	return pod.made;
}

int podns_user(void)
{
	return pod.user;
}

int podns_network(void)
{
	return pod.made ? pod.network : -1;
}

uid_t podns_id(uid_t id)
{
	if (!pod.made)
		return id;
	if (id < pod.length)
		return pod.host_id + id;
	return pod.host_id ? pod.host_id - 1 : id;
}

int podns_give(const char *path)
{
	return pod.made ? lchown(path, pod.host_id, pod.host_id) : 0;
}

int podns_give_fd(int fd)
{
	return pod.made ? fchown(fd, pod.host_id, pod.host_id) : 0;
}

int podns_put(const char *path, const char *text)
{
	int result = file_put(path, text);
	int error;

	if (result == 0 || errno != EACCES || !pod.made)
		return result;
	if (seteuid(pod.host_id) < 0)
		return -1;
	result = file_put(path, text);
	error = errno;
	if (seteuid(0) < 0)
		abort();
	errno = error;
	return result;
}

int podns_outside(void)
{
	return pod.made ? setns(pod.outside, CLONE_NEWNET) : 0;
}

void podns_inside(void)
{
	if (pod.made && setns(pod.network, CLONE_NEWNET) < 0) {
		say_errno("enter", "the pod's network");
		abort();
	}
}

int podns_news(int protocol, uint32_t groups)
{
	int fd;

	if (podns_outside() < 0)
		return -1;
	fd = netlink_open(protocol, groups);
	podns_inside();
	return fd;
}

/* Says by a byte, or by its end, how that went; stays until it is killed, to be looked at below /proc. */
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

static int write_map(pid_t pid, const char *kind, const IdMapping *mapping)
{
	char path[64], line[64];

	snprintf(path, sizeof(path), "/proc/%d/%s_map", (int)pid, kind);
	snprintf(line, sizeof(line), "0 %u %u\n", mapping->host_id, mapping->length);
	return file_put(path, line);
}

/* Open, and at a path that crun can be given. */
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

static int keep_all(pid_t pid, const IdMapping *mapping, struct fault *fault)
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
	if (network_loopback() < 0)
		return fault_errno(fault, "set interface up", "lo");
	return 0;
}

static int hold_and_keep(int ends[2], const IdMapping *mapping, struct fault *fault)
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
		/* ENOSPC, EPERM: user.max_user_namespaces; EINVAL: a kernel without them. */
		result = fault_set(fault, FAILED_PRECONDITION, "make user namespace: this zone's kernel: %s",
				   strerror(failed));
	}
	if (kill(pid, SIGKILL) < 0 || waitpid(pid, NULL, 0) < 0)
		return fault_errno(fault, "end", "the namespaces' first process");
	return result;
}

static int make(const IdMapping *mapping, struct fault *fault)
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

int podns_make(const IdMapping *untrusted, struct fault *fault)
{
	if (!untrusted->length || untrusted->host_id > UINT32_MAX - untrusted->length)
		return fault_set(fault, INVALID_ARGUMENT, "make user namespace: %u ids from %u", untrusted->length,
				 untrusted->host_id);
	if (pod.made || pod.user >= 0) {
		if (pod.made && pod.host_id == untrusted->host_id && pod.length == untrusted->length)
			return 0;
		return fault_set(fault, FAILED_PRECONDITION,
				 "make user namespace: the zone has one already, or could not make it");
	}
	if (make(untrusted, fault) < 0)
		return -1;
	pod.made = true;
	pod.host_id = untrusted->host_id;
	pod.length = untrusted->length;
	return 0;
}
