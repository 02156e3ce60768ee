/* What the control groups tell of a container, or of the whole zone. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cgroup.h"
#include "file.h"
#include "loop.h"

enum { TEXT_SIZE = 4096 };

/* 0 where the text has no such line. */
static uint64_t value_of(const char *text, const char *key)
{
	uint64_t value;

	return text_number(text, key, &value) ? value : 0;
}

static uint64_t less(uint64_t value, uint64_t part)
{
	return value > part ? value - part : 0;
}

/* What v1 shows for "no limit": the largest counter of pages. */
static uint64_t limit_v1(uint64_t value)
{
	return value >= UINT64_C(1) << 62 ? 0 : value;
}

static void cpu_v2(const char *group, struct usage *usage)
{
	char text[TEXT_SIZE];

	if (!cgroup_text(group, "", "cpu.stat", text, sizeof(text)))
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
	usage->swap_limit = cgroup_number(group, "", "memory.swap.max", "");
	if (usage->swap_limit)
		usage->swap_limit += usage->memory_limit;
	usage->oom_kills = cgroup_number(group, "", "memory.events", "oom_kill");
	if (!cgroup_text(group, "", "memory.stat", text, sizeof(text)))
		return;
	usage->rss = value_of(text, "anon");
	usage->cache = value_of(text, "file");
	usage->mapped = value_of(text, "file_mapped");
	usage->faults = value_of(text, "pgfault");
	usage->major_faults = value_of(text, "pgmajfault");
	usage->kernel = value_of(text, "kernel");
	usage->working_set = less(usage->memory, value_of(text, "inactive_file"));
}

static void cpu_v1(const char *group, struct usage *usage)
{
	const uint64_t tick_ns = SECOND_NS / (uint64_t)sysconf(_SC_CLK_TCK);
	char text[TEXT_SIZE];

	usage->cpu_ns = cgroup_number(group, "cpuacct", "cpuacct.usage", "");
	if (cgroup_text(group, "cpuacct", "cpuacct.stat", text, sizeof(text))) {
		usage->cpu_user_ns = value_of(text, "user") * tick_ns;
		usage->cpu_system_ns = value_of(text, "system") * tick_ns;
	}
	if (cgroup_text(group, "cpu", "cpu.stat", text, sizeof(text))) {
		usage->periods = value_of(text, "nr_periods");
		usage->throttled_periods = value_of(text, "nr_throttled");
		usage->throttled_ns = value_of(text, "throttled_time");
	}
}

static void memory_v1(const char *group, struct usage *usage)
{
	char text[TEXT_SIZE];

	usage->memory = cgroup_number(group, "memory", "memory.usage_in_bytes", "");
	usage->memory_limit = limit_v1(cgroup_number(group, "memory", "memory.limit_in_bytes", ""));
	usage->swap_limit = limit_v1(cgroup_number(group, "memory", "memory.memsw.limit_in_bytes", ""));
	usage->oom_kills = cgroup_number(group, "memory", "memory.oom_control", "oom_kill");
	if (!cgroup_text(group, "memory", "memory.stat", text, sizeof(text)))
		return;
	usage->rss = value_of(text, "total_rss");
	usage->cache = value_of(text, "total_cache");
	usage->mapped = value_of(text, "total_mapped_file");
	usage->faults = value_of(text, "total_pgfault");
	usage->major_faults = value_of(text, "total_pgmajfault");
	usage->swap = value_of(text, "total_swap");
	usage->working_set = less(usage->memory, value_of(text, "total_inactive_file"));
}

static void pressures(const char *group, struct usage *usage)
{
	static const char *const names[PRESSURES] = { "cpu.pressure", "memory.pressure", "io.pressure" };
	char text[TEXT_SIZE];

	for (int i = 0; i < PRESSURES; i++)
		usage->has_pressure[i] = cgroup_is_v2() &&
					 cgroup_text(group, "", names[i], text, sizeof(text)) &&
					 pressure_parse(text, &usage->pressure[i]);
}

void cgroup_usage(const char *group, struct usage *usage)
{
	*usage = (struct usage){ 0 };
	if (cgroup_is_v2()) {
		cpu_v2(group, usage);
		memory_v2(group, usage);
	} else {
		cpu_v1(group, usage);
		memory_v1(group, usage);
	}
	usage->pids = cgroup_number(group, "pids", "pids.current", "");
	pressures(group, usage);
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

	if (!cgroup_text(group, "", "io.stat", text, sizeof(text)))
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

void cgroup_details(const char *group, ContainerStats *stats)
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
}
