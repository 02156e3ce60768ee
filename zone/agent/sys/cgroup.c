#include "sys/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sys/fd_cache.h"
#include "sys/file.h"
#include "sys/name.h"

static bool v2;

enum { GROUP_PATH_SIZE = 192, TEXT_SIZE = 4096, FREEZE_MS = 100 };

_Static_assert(sizeof("workloads/") + ID_MAX <= GROUP_SIZE, "a container's id fits");

bool cgroup_is_v2(void)
{
	return v2;
}

void cgroup_use_v2(void)
{
	v2 = true;
}

void cgroup_name(char group[GROUP_SIZE], const char *id)
{
	/* A valid id fits. */
	snprintf(group, GROUP_SIZE, "workloads/%s", id);
}

bool cgroup_read(const char *group, const char *controller, const char *name, char *text, size_t size)
{
	char path[GROUP_PATH_SIZE];

	if (path_format(path, sizeof(path), CGROUP_ROOT "/%s%s%s/%s", v2 ? "" : controller, v2 ? "" : "/", group,
		     name) < 0)
		return false;
	return fd_cache_read(path, text, size) >= 0;
}

uint64_t cgroup_number(const char *group, const char *controller, const char *name, const char *key)
{
	char text[TEXT_SIZE];
	uint64_t value;

	if (!cgroup_read(group, controller, name, text, sizeof(text)) || !text_find_number(text, key, &value))
		return 0;
	return value;
}

FILE *cgroup_procs_open(const char *group)
{
	char path[GROUP_PATH_SIZE];

	if (path_format(path, sizeof(path), CGROUP_ROOT "/%s%s/cgroup.procs", v2 ? "" : "pids/",
		     group) < 0)
		return NULL;
	return fopen(path, "re");
}

uint64_t cgroup_oom_kills(const char *id)
{
	char group[GROUP_SIZE];

	cgroup_name(group, id);
	return cgroup_number(group, "memory", v2 ? "memory.events" : "memory.oom_control", "oom_kill");
}

/* The kernel counts an OOM kill for the killed process's group, but the "oom" event for the group whose limit was
 * reached.  Version 1 counts how often the limit was met, even if memory could then be freed. */
bool cgroup_limit_reached(const char *id)
{
	char group[GROUP_SIZE], text[32];
	uint64_t met;

	cgroup_name(group, id);
	if (v2)
		return cgroup_number(group, "memory", "memory.events", "oom") > 0;
	if (!cgroup_read(group, "memory", "memory.failcnt", text, sizeof(text)))
		return false;
	text[strcspn(text, "\n")] = '\0';
	return number_parse(text, UINT64_MAX, &met) && met > 0;
}

void cgroup_forget(const char *id)
{
	char group[GROUP_SIZE];

	cgroup_name(group, id);
	fd_cache_drop(group);
}

static int send_all(FILE *processes, int number, size_t *count)
{
	char line[32];
	uint64_t pid;

	while (fgets(line, sizeof(line), processes)) {
		line[strcspn(line, "\n")] = '\0';
		/* 0 stands for a process of another pid namespace, outside this zone */
		if (!number_parse(line, INT32_MAX, &pid) || pid < 2)
			continue;
		++*count;
		if (kill((pid_t)pid, number) < 0 && errno != ESRCH)
			return -1;
	}
	return 0;
}

static int kill_listed(const char *group, int number, size_t *count)
{
	FILE *processes = cgroup_procs_open(group);
	int result, error;

	*count = 0;
	if (!processes)
		return errno == ENOENT ? 0 : -1;
	result = send_all(processes, number, count);
	error = errno;
	fclose(processes);
	errno = error;
	return result;
}

/* Version 1 reports no "all frozen" event, therefore this polls.  A process that waits for a device may take long. */
static void wait_frozen(const char *path)
{
	const struct timespec moment = { .tv_nsec = 1000000 };
	char state[32];

	for (int i = 0; i < FREEZE_MS; i++) {
		if (file_read(path, state, sizeof(state)) < 0 || strncmp(state, "FROZEN", 6) == 0)
			return;
		nanosleep(&moment, NULL);
	}
}

/* Processes that fork during the read of the list would leave children behind; frozen processes cannot fork. */
static int kill_frozen(const char *group)
{
	char path[GROUP_PATH_SIZE];
	size_t count;
	int result, error;

	if (v2 ||
	    path_format(path, sizeof(path), CGROUP_ROOT "/freezer/%s/freezer.state", group) < 0 ||
	    file_overwrite(path, "FROZEN") < 0)
		return kill_listed(group, SIGKILL, &count);
	wait_frozen(path);
	result = kill_listed(group, SIGKILL, &count);
	error = errno;
	if (file_overwrite(path, "THAWED") < 0)
		return -1;
	errno = error;
	return result;
}

/* Also kills the groups below, which the container made itself.  Since Linux 5.14. */
static bool kill_tree(const char *group)
{
	char path[GROUP_PATH_SIZE];

	return v2 && path_format(path, sizeof(path), CGROUP_ROOT "/%s/cgroup.kill", group) == 0 &&
	       file_overwrite(path, "1") == 0;
}

int cgroup_kill(const char *id, int number)
{
	char group[GROUP_SIZE];
	size_t count;

	cgroup_name(group, id);
	if (number == SIGKILL && kill_tree(group))
		return 0;
	if (kill_listed(group, number, &count) < 0)
		return -1;
	return number == SIGKILL && count ? kill_frozen(group) : 0;
}
