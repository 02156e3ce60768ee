#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"

enum { GROUP_PATH_SIZE = 192, TEXT_SIZE = 4096 };

/* The text of one file of a container's group; v1 files live below their controller. */
static bool group_text(const char *id, const char *controller, const char *name, char *text, size_t size)
{
	char path[GROUP_PATH_SIZE];
	bool v2 = cgroup_is_v2();

	if (path_set(path, sizeof(path), "/sys/fs/cgroup/%s%sworkloads/%s/%s", v2 ? "" : controller,
		     v2 ? "" : "/", id, name) < 0)
		return false;
	return file_read(path, text, size) >= 0;
}

static uint64_t group_number(const char *id, const char *controller, const char *name, const char *key)
{
	char text[TEXT_SIZE];
	uint64_t value;

	if (!group_text(id, controller, name, text, sizeof(text)) || !text_number(text, key, &value))
		return 0;
	return value;
}

uint64_t cgroup_oom_kills(const char *id)
{
	return group_number(id, "memory", cgroup_is_v2() ? "memory.events" : "memory.oom_control", "oom_kill");
}

static int kill_listed(FILE *processes, int number)
{
	char line[32];
	uint64_t pid;

	while (fgets(line, sizeof(line), processes)) {
		line[strcspn(line, "\n")] = '\0';
		/* 0 is a process of another pid namespace: none of this zone's. */
		if (!number_parse(line, INT32_MAX, &pid) || pid < 2)
			continue;
		if (kill((pid_t)pid, number) < 0 && errno != ESRCH)
			return -1;
	}
	return 0;
}

/* With groups that the container made below its own; Linux 5.14. */
static bool kill_tree(const char *id)
{
	char path[GROUP_PATH_SIZE];

	return cgroup_is_v2() && path_set(path, sizeof(path), "/sys/fs/cgroup/workloads/%s/cgroup.kill", id) == 0 &&
	       file_put(path, "1") == 0;
}

int cgroup_kill(const char *id, int number)
{
	char path[GROUP_PATH_SIZE];
	FILE *processes;
	int result, error;

	if (number == SIGKILL && kill_tree(id))
		return 0;
	if (path_set(path, sizeof(path), "/sys/fs/cgroup/%sworkloads/%s/cgroup.procs",
		     cgroup_is_v2() ? "" : "pids/", id) < 0)
		return -1;
	processes = fopen(path, "re");
	if (!processes)
		return errno == ENOENT ? 0 : -1;
	result = kill_listed(processes, number);
	error = errno;
	fclose(processes);
	errno = error;
	return result;
}

static uint64_t less(uint64_t value, uint64_t part)
{
	return value > part ? value - part : 0;
}

static void stats_v2(const char *id, ContainerStats *stats)
{
	char memory[TEXT_SIZE];
	uint64_t cold = 0;

	stats->cpu_usage_ns = group_number(id, "", "cpu.stat", "usage_usec") * 1000;
	stats->memory_usage_bytes = group_number(id, "", "memory.current", "");
	stats->memory_limit_bytes = group_number(id, "", "memory.max", "");
	stats->swap_usage_bytes = group_number(id, "", "memory.swap.current", "");
	stats->pids_current = group_number(id, "", "pids.current", "");
	if (group_text(id, "", "memory.stat", memory, sizeof(memory))) {
		text_number(memory, "anon", &stats->memory_rss_bytes);
		text_number(memory, "pgfault", &stats->page_faults);
		text_number(memory, "pgmajfault", &stats->major_page_faults);
		text_number(memory, "inactive_file", &cold);
	}
	stats->memory_working_set_bytes = less(stats->memory_usage_bytes, cold);
}

static void stats_v1(const char *id, ContainerStats *stats)
{
	/* What v1 shows for "no limit": the largest counter of pages. */
	const uint64_t unlimited = UINT64_C(1) << 62;
	char memory[TEXT_SIZE];
	uint64_t cold = 0;

	stats->cpu_usage_ns = group_number(id, "cpuacct", "cpuacct.usage", "");
	stats->memory_usage_bytes = group_number(id, "memory", "memory.usage_in_bytes", "");
	stats->memory_limit_bytes = group_number(id, "memory", "memory.limit_in_bytes", "");
	if (stats->memory_limit_bytes >= unlimited)
		stats->memory_limit_bytes = 0;
	stats->pids_current = group_number(id, "pids", "pids.current", "");
	if (group_text(id, "memory", "memory.stat", memory, sizeof(memory))) {
		text_number(memory, "total_rss", &stats->memory_rss_bytes);
		text_number(memory, "total_pgfault", &stats->page_faults);
		text_number(memory, "total_pgmajfault", &stats->major_page_faults);
		text_number(memory, "total_inactive_file", &cold);
		text_number(memory, "total_swap", &stats->swap_usage_bytes);
	}
	stats->memory_working_set_bytes = less(stats->memory_usage_bytes, cold);
}

void cgroup_stats(const char *id, ContainerStats *stats)
{
	if (cgroup_is_v2())
		stats_v2(id, stats);
	else
		stats_v1(id, stats);
}
