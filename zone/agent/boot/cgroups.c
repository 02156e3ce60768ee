/* Mounts the control groups. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot/boot.h"
#include "sys/cgroup.h"
#include "sys/file.h"
#include "sys/log.h"

static const unsigned long FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC;

static void enable_all(char *controllers)
{
	for (char *name = strtok(controllers, " \n"); name; name = strtok(NULL, " \n")) {
		char order[64];

		if (path_format(order, sizeof(order), "+%s", name) < 0 ||
		    file_overwrite(CGROUP_ROOT "/cgroup.subtree_control", order) < 0)
			log_errno("enable cgroup controller", name);
	}
}

/* favordynmods (Linux 6.0): the move of a process to its group, needed for each container and exec, then waits for no
 * RCU grace period. */
static int mount_v2(void)
{
	if (mount("cgroup2", CGROUP_ROOT, "cgroup2", FLAGS, "favordynmods") == 0)
		return 0;
	return mount("cgroup2", CGROUP_ROOT, "cgroup2", FLAGS, NULL);
}

/* 1: version 2 is in use; 0: it lacks the memory controller, and is not mounted; -1 with a log line. */
static int try_v2(void)
{
	char controllers[512];

	if (mount_v2() < 0)
		return 0;
	if (file_read(CGROUP_ROOT "/cgroup.controllers", controllers, sizeof(controllers)) < 0) {
		log_errno("read", CGROUP_ROOT "/cgroup.controllers");
		return -1;
	}
	if (!strstr(controllers, "memory")) {
		if (umount2(CGROUP_ROOT, 0) == 0)
			return 0;
		log_errno("umount2", CGROUP_ROOT);
		return -1;
	}
	/* A group with processes of its own cannot have controllers for its children. */
	if (mkdir(CGROUP_ROOT "/agent", 0755) < 0 || file_overwrite(CGROUP_ROOT "/agent/cgroup.procs", "0") < 0) {
		log_errno("move the agent to its cgroup", CGROUP_ROOT "/agent");
		return -1;
	}
	cgroup_use_v2();
	enable_all(controllers);
	return 1;
}

/* "cpu,cpuacct" is one hierarchy; crun looks for either name. */
static int link_names(const char *controllers)
{
	char names[128];

	if (!strchr(controllers, ','))
		return 0;
	if (path_format(names, sizeof(names), "%s", controllers) < 0)
		return -1;
	for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
		char path[192];

		if (path_format(path, sizeof(path), CGROUP_ROOT "/%s", name) < 0 || symlink(controllers, path) < 0)
			return -1;
	}
	return 0;
}

/* Only hierarchies that limit or count containers: each hierarchy slows every create and exec (see mount_v2), and crun
 * skips unmounted hierarchies. */
static bool wanted(const char *controllers)
{
	static const char *const names[] = { "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids" };
	char list[128];
	char *rest = list;
	char *name;

	if (path_format(list, sizeof(list), "%s", controllers) < 0)
		return false;
	while ((name = strsep(&rest, ",")))
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
			if (strcmp(name, names[i]) == 0)
				return true;
	return false;
}

static int mount_v1(const char *controllers)
{
	char path[192];

	if (path_format(path, sizeof(path), CGROUP_ROOT "/%s", controllers) < 0 || mkdir(path, 0755) < 0 ||
	    mount("cgroup", path, "cgroup", FLAGS, controllers) < 0 || link_names(controllers) < 0) {
		log_errno("mount cgroup", controllers);
		return -1;
	}
	return 0;
}

/* Lines of /proc/self/cgroup are "<hierarchy>:<controllers>:<path>"; version 2 has no controllers. */
static int mount_all_v1(void)
{
	char text[2048];
	char *rest = text;
	char *line;

	if (mount("cgroup", CGROUP_ROOT, "tmpfs", FLAGS, "mode=0755,size=64k") < 0) {
		log_errno("mount tmpfs", CGROUP_ROOT);
		return -1;
	}
	if (file_read("/proc/self/cgroup", text, sizeof(text)) < 0) {
		log_errno("read", "/proc/self/cgroup");
		return -1;
	}
	while ((line = strsep(&rest, "\n"))) {
		char *controllers;

		strsep(&line, ":");
		controllers = strsep(&line, ":");
		if (controllers && wanted(controllers) && mount_v1(controllers) < 0)
			return -1;
	}
	/* Read-only: otherwise crun would make plain directories for unmounted hierarchies. */
	if (mount(NULL, CGROUP_ROOT, NULL, MS_REMOUNT | MS_RDONLY | FLAGS, NULL) < 0) {
		log_errno("make read-only", CGROUP_ROOT);
		return -1;
	}
	return 0;
}

int boot_cgroups(void)
{
	int result = try_v2();

	if (result == 0)
		return mount_all_v1();
	return result < 0 ? -1 : 0;
}
