#include "container/usage.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sys/cgroup.h"
#include "sys/file.h"
#include "sys/loop.h"

enum {
	TEXT_SIZE = 4096,
	PROCESSES_MAX = 4096, /* looked at in one container */
	OPEN_MAX = 16384,     /* descriptors looked at in one container */
	READS_MAX = 4,        /* of the CPU time, until a read takes no longer than this: */
	QUICK_NS = 10 * 1000 * 1000,
};

/* 0 if the text has no such line. */
static uint64_t value_of(const char *text, const char *key)
{
	uint64_t value;

	return text_find_number(text, key, &value) ? value : 0;
}

uint64_t subtract(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* Version 1 shows "no limit" as the largest counter of pages. */
static uint64_t limit_v1(uint64_t value)
{
	return value >= UINT64_C(1) << 62 ? 0 : value;
}

static void cpu_v2(const char *group, struct usage *usage)
{
	char text[TEXT_SIZE];

	if (!cgroup_read(group, "", "cpu.stat", text, sizeof(text)))
		return;
	usage->cpu_ns = value_of(text, "usage_usec") * 1000;
	usage->cpu_user_ns = value_of(text, "user_usec") * 1000;
	usage->cpu_system_ns = value_of(text, "system_usec") * 1000;
	usage->periods = value_of(text, "nr_periods");
	usage->throttled_periods = value_of(text, "nr_throttled");
	usage->throttled_ns = value_of(text, "throttled_usec") * 1000;
}

static void memory_v2(const char *group, struct usage *usage)
{
	char text[TEXT_SIZE];

	usage->memory = cgroup_number(group, "", "memory.current", "");
	usage->memory_limit = cgroup_number(group, "", "memory.max", "");
	usage->swap = cgroup_number(group, "", "memory.swap.current", "");
	if (!cgroup_read(group, "", "memory.stat", text, sizeof(text)))
		return;
	usage->rss = value_of(text, "anon");
	usage->cache = value_of(text, "file");
	usage->mapped = value_of(text, "file_mapped");
	usage->faults = value_of(text, "pgfault");
	usage->major_faults = value_of(text, "pgmajfault");
	usage->kernel = value_of(text, "kernel");
	usage->working_set = subtract(usage->memory, value_of(text, "inactive_file"));
}

static void limits_v2(const char *group, struct usage *usage)
{
	usage->swap_limit = cgroup_number(group, "", "memory.swap.max", "");
	if (usage->swap_limit)
		usage->swap_limit += usage->memory_limit;
	usage->oom_kills = cgroup_number(group, "", "memory.events", "oom_kill");
}

static void cpu_v1(const char *group, struct usage *usage)
{
	const uint64_t tick_ns = SECOND_NS / (uint64_t)sysconf(_SC_CLK_TCK);
	char text[TEXT_SIZE];

	if (cgroup_read(group, "cpuacct", "cpuacct.stat", text, sizeof(text))) {
		usage->cpu_user_ns = value_of(text, "user") * tick_ns;
		usage->cpu_system_ns = value_of(text, "system") * tick_ns;
	}
	if (cgroup_read(group, "cpu", "cpu.stat", text, sizeof(text))) {
		usage->periods = value_of(text, "nr_periods");
		usage->throttled_periods = value_of(text, "nr_throttled");
		usage->throttled_ns = value_of(text, "throttled_time");
	}
}

static void figures_v1(const char *group, struct usage *usage)
{
	char text[TEXT_SIZE];

	usage->memory = cgroup_number(group, "memory", "memory.usage_in_bytes", "");
	usage->memory_limit = limit_v1(cgroup_number(group, "memory", "memory.limit_in_bytes", ""));
	if (!cgroup_read(group, "memory", "memory.stat", text, sizeof(text)))
		return;
	usage->rss = value_of(text, "total_rss");
	usage->cache = value_of(text, "total_cache");
	usage->mapped = value_of(text, "total_mapped_file");
	usage->faults = value_of(text, "total_pgfault");
	usage->major_faults = value_of(text, "total_pgmajfault");
	usage->swap = value_of(text, "total_swap");
	usage->working_set = subtract(usage->memory, value_of(text, "total_inactive_file"));
}

static void limits_v1(const char *group, struct usage *usage)
{
	usage->swap_limit = limit_v1(cgroup_number(group, "memory", "memory.memsw.limit_in_bytes", ""));
	usage->oom_kills = cgroup_number(group, "memory", "memory.oom_control", "oom_kill");
}

static void pressures(const char *group, struct usage *usage)
{
	static const char *const names[PRESSURES] = { "cpu.pressure", "memory.pressure", "io.pressure" };
	char text[TEXT_SIZE];

	for (int i = 0; i < PRESSURES; i++)
		usage->has_pressure[i] = cgroup_is_v2() &&
					 cgroup_read(group, "", names[i], text, sizeof(text)) &&
					 pressure_parse(text, &usage->pressure[i]);
}

/* A rate is CPU time by time: a long delay between the two reads would falsify it. */
static void cpu_at_a_time(const char *group, struct usage *usage)
{
	for (int i = 0; i < READS_MAX; i++) {
		usage->read_at_ns = wall_ns();
		if (cgroup_is_v2())
			cpu_v2(group, usage);
		else
			usage->cpu_ns = cgroup_number(group, "cpuacct", "cpuacct.usage", "");
		if (wall_ns() - usage->read_at_ns < QUICK_NS)
			return;
	}
}

static void shared_figures(const char *group, struct usage *usage)
{
	*usage = (struct usage){ 0 };
	cpu_at_a_time(group, usage);
	if (cgroup_is_v2()) {
		memory_v2(group, usage);
	} else {
		figures_v1(group, usage);
	}
	pressures(group, usage);
}

void usage_of_group(const char *group, struct usage *usage)
{
	shared_figures(group, usage);
	if (cgroup_is_v2()) {
		limits_v2(group, usage);
	} else {
		cpu_v1(group, usage);
		limits_v1(group, usage);
	}
	usage->pids = cgroup_number(group, "pids", "pids.current", "");
}

void usage_of_zone(struct usage *usage)
{
	shared_figures(".", usage);
}

static bool line_parse(const char *text, const char *format, double *averages, uint64_t *total)
{
	unsigned long long sum;

	if (sscanf(text, format, &averages[0], &averages[1], &averages[2], &sum) != 4)
		return false;
	*total = sum;
	return true;
}

bool pressure_parse(const char *text, Pressure *pressure)
{
	const char *full = strstr(text, "full ");
	double some[3], all[3];

	*pressure = (Pressure)PRESSURE_INIT;
	if (!line_parse(text, "some avg10=%lf avg60=%lf avg300=%lf total=%llu", some, &pressure->some_total_us))
		return false;
	pressure->some_avg10 = some[0];
	pressure->some_avg60 = some[1];
	pressure->some_avg300 = some[2];
	if (full &&
	    line_parse(full, "full avg10=%lf avg60=%lf avg300=%lf total=%llu", all, &pressure->full_total_us)) {
		pressure->full_avg10 = all[0];
		pressure->full_avg60 = all[1];
		pressure->full_avg300 = all[2];
	}
	return true;
}

/* Lines are "<major>:<minor> rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6". */
static void io_v2(const char *group, ContainerStats *stats)
{
	char text[TEXT_SIZE];
	unsigned long long read, written, reads, writes;

	if (!cgroup_read(group, "", "io.stat", text, sizeof(text)))
		return;
	for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
		if (sscanf(line, "%*u:%*u rbytes=%llu wbytes=%llu rios=%llu wios=%llu", &read, &written, &reads,
			   &writes) == 4) {
			stats->io_read_bytes += read;
			stats->io_write_bytes += written;
			stats->io_reads += reads;
			stats->io_writes += writes;
		}
}

/* Counts the open descriptors of a process.  A container may have any number: descriptors beyond the bound are not
 * counted. */
static void count_open(unsigned int pid, ContainerStats *stats)
{
	char path[48], target[16];
	struct dirent *entry;
	DIR *directory;
	ssize_t n;

	if (path_format(path, sizeof(path), "/proc/%u/fd", pid) < 0)
		return;
	directory = opendir(path);
	while (directory && stats->file_descriptors < OPEN_MAX && (entry = readdir(directory))) {
		if (entry->d_name[0] == '.')
			continue;
		stats->file_descriptors++;
		n = readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);
		if (n > 0 && strncmp(target, "socket:", 7) == 0)
			stats->sockets++;
	}
	if (directory)
		closedir(directory);
}

/* "<pid> (<name>) <state> ...": the name may contain anything. */
static bool is_running(unsigned int pid)
{
	char path[48], text[512];
	const char *end;

	if (path_format(path, sizeof(path), "/proc/%u/stat", pid) < 0 || file_read(path, text, sizeof(text)) < 0)
		return false;
	end = strrchr(text, ')');
	return end && end[1] == ' ' && end[2] == 'R';
}

static void count_processes(const char *group, ContainerStats *stats)
{
	FILE *list = cgroup_procs_open(group);
	char line[32];
	uint64_t pid;

	while (list && stats->processes < PROCESSES_MAX && fgets(line, sizeof(line), list)) {
		line[strcspn(line, "\n")] = '\0';
		if (!number_parse(line, INT32_MAX, &pid) || pid < 2)
			continue;
		stats->processes++;
		stats->running_processes += is_running((unsigned int)pid);
		count_open((unsigned int)pid, stats);
	}
	if (list)
		fclose(list);
}

void usage_details(const char *group, ContainerStats *stats)
{
	if (cgroup_is_v2()) {
		stats->memory_max_usage_bytes = cgroup_number(group, "", "memory.peak", "");
		stats->memory_fail_count = cgroup_number(group, "", "memory.events", "max");
		io_v2(group, stats);
	} else {
		stats->memory_max_usage_bytes = cgroup_number(group, "memory", "memory.max_usage_in_bytes", "");
		stats->memory_kernel_bytes = cgroup_number(group, "memory", "memory.kmem.usage_in_bytes", "");
		stats->memory_fail_count = cgroup_number(group, "memory", "memory.failcnt", "");
	}
	stats->pids_limit = cgroup_number(group, "pids", "pids.max", "");
	count_processes(group, stats);
}
