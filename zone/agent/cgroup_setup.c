/* Mounting the control groups at boot. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cgroup.h"
#include "file.h"
#include "say.h"

#define ROOT "/sys/fs/cgroup"

static const unsigned long FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC;
static bool v2;

bool cgroup_is_v2(void)
{
	return v2;
}

static int enable_all(char *controllers)
{
	for (char *name = strtok(controllers, " \n"); name; name = strtok(NULL, " \n")) {
		char order[64];

		if (path_set(order, sizeof(order), "+%s", name) < 0 ||
		    file_put(ROOT "/cgroup.subtree_control", order) < 0)
			say_errno("enable cgroup controller", name);
	}
	return 0;
}

/* Every container and every exec is moved to its group: with favordynmods (Linux 6.0) that does not
 * wait for a grace period. */
static int mount_v2(void)
{
	if (mount("cgroup2", ROOT, "cgroup2", FLAGS, "favordynmods") == 0)
		return 0;
	return mount("cgroup2", ROOT, "cgroup2", FLAGS, NULL);
}

/* 1 when version 2 serves, 0 when it lacks what containers need. */
static int try_v2(void)
{
	char controllers[512];

	if (mount_v2() < 0)
		return 0;
	if (file_read(ROOT "/cgroup.controllers", controllers, sizeof(controllers)) < 0) {
		say_errno("read", ROOT "/cgroup.controllers");
		return -1;
	}
	if (!strstr(controllers, "memory")) {
		if (umount2(ROOT, 0) == 0)
			return 0;
		say_errno("umount2", ROOT);
		return -1;
	}
	/* A group with processes of its own cannot have controllers for its children. */
	if (mkdir(ROOT "/agent", 0755) < 0 || file_put(ROOT "/agent/cgroup.procs", "0") < 0) {
		say_errno("move the agent to its cgroup", ROOT "/agent");
		return -1;
	}
	v2 = true;
	enable_all(controllers);
	return 1;
}

/* "cpu,cpuacct" is one hierarchy; crun looks for either name. */
static int link_names(const char *controllers)
{
	char names[128];

	if (!strchr(controllers, ','))
		return 0;
	if (path_set(names, sizeof(names), "%s", controllers) < 0)
		return -1;
	for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
		char path[192];

		if (path_set(path, sizeof(path), ROOT "/%s", name) < 0 || symlink(controllers, path) < 0)
			return -1;
	}
	return 0;
}

/* What limits or counts containers.  Each hierarchy makes every create and exec slower (see above),
 * and crun leaves out those that are not mounted. */
static bool wanted(const char *controllers)
{
	static const char *const names[] = { "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids" };
	char list[128];
	char *rest = list;
	char *name;

	if (path_set(list, sizeof(list), "%s", controllers) < 0)
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

	if (path_set(path, sizeof(path), ROOT "/%s", controllers) < 0 || mkdir(path, 0755) < 0 ||
	    mount("cgroup", path, "cgroup", FLAGS, controllers) < 0 || link_names(controllers) < 0) {
		say_errno("mount cgroup", controllers);
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

	if (mount("cgroup", ROOT, "tmpfs", FLAGS, "mode=0755,size=64k") < 0) {
		say_errno("mount tmpfs", ROOT);
		return -1;
	}
	if (file_read("/proc/self/cgroup", text, sizeof(text)) < 0) {
		say_errno("read", "/proc/self/cgroup");
		return -1;
	}
	while ((line = strsep(&rest, "\n"))) {
		char *controllers;

		strsep(&line, ":");
		controllers = strsep(&line, ":");
		if (controllers && wanted(controllers) && mount_v1(controllers) < 0)
			return -1;
	}
	/* Read-only, or crun would make directories in place of what is not mounted. */
	if (mount(NULL, ROOT, NULL, MS_REMOUNT | MS_RDONLY | FLAGS, NULL) < 0) {
		say_errno("make read-only", ROOT);
		return -1;
	}
	return 0;
}

int cgroup_setup(void)
{
	int result = try_v2();

	if (result == 0)
		return mount_all_v1();
	return result < 0 ? -1 : 0;
}
