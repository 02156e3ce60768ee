/* GetStats: containers from their control groups, the zone from proc and sysfs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channel/call.h"
#include "container/container.h"
#include "container/layer_use.h"
#include "container/usage.h"
#include "sys/cgroup.h"
#include "sys/fd_cache.h"
#include "sys/file.h"
#include "sys/loop.h"
#include "verbs/stats.h"
#include "verbs/verbs.h"

enum { INTERFACES_MAX = 32 };

struct collected {
	ContainerStats containers[CONTAINERS_MAX];
	ContainerStats *container_list[CONTAINERS_MAX];
	struct usage usages[CONTAINERS_MAX + 1]; /* the last is the zone's */
	InterfaceStats interfaces[INTERFACES_MAX];
	InterfaceStats *interface_list[INTERFACES_MAX];
	char names[INTERFACES_MAX][16];
	ZoneStats zone;
	Stats stats;
	bool details;
};

static void set_usage(ContainerStats *stats, struct usage *usage)
{
	stats->cpu_usage_ns = usage->cpu_ns;
	stats->cpu_user_ns = usage->cpu_user_ns;
	stats->cpu_system_ns = usage->cpu_system_ns;
	stats->cpu_periods = usage->periods;
	stats->cpu_throttled_periods = usage->throttled_periods;
	stats->cpu_throttled_ns = usage->throttled_ns;
	stats->memory_usage_bytes = usage->memory;
	stats->memory_limit_bytes = usage->memory_limit;
	stats->memory_working_set_bytes = usage->working_set;
	stats->memory_rss_bytes = usage->rss;
	stats->memory_cache_bytes = usage->cache;
	stats->memory_mapped_file_bytes = usage->mapped;
	stats->memory_kernel_bytes = usage->kernel;
	stats->page_faults = usage->faults;
	stats->major_page_faults = usage->major_faults;
	stats->swap_usage_bytes = usage->swap;
	stats->memory_swap_limit_bytes = usage->swap_limit;
	stats->pids_current = usage->pids;
	stats->oom_kills = usage->oom_kills;
	stats->cpu_pressure = usage->has_pressure[0] ? &usage->pressure[0] : NULL;
	stats->memory_pressure = usage->has_pressure[1] ? &usage->pressure[1] : NULL;
	stats->io_pressure = usage->has_pressure[2] ? &usage->pressure[2] : NULL;
}

static void add_container(struct collected *all, struct container *container)
{
	size_t at = all->stats.n_containers;
	ContainerStats *one = &all->containers[at];
	char group[GROUP_SIZE];
	struct disk_usage disk;

	if (container->init.state == PREPARING || at == CONTAINERS_MAX)
		return;
	*one = (ContainerStats)CONTAINER_STATS_INIT;
	one->id = container->id;
	cgroup_name(group, container->id);
	usage_of_group(group, &all->usages[at]);
	one->timestamp_ns = all->usages[at].read_at_ns;
	set_usage(one, &all->usages[at]);
	if (layer_use(container, &disk) == 0) {
		one->writable_layer_bytes = disk.bytes;
		one->writable_layer_inodes =
			disk.inodes > container->inodes_given ? disk.inodes - container->inodes_given : 0;
		one->writable_layer_limit_bytes = disk.bytes_limit;
		one->writable_layer_inodes_limit = disk.inodes_limit;
	}
	if (all->details)
		usage_details(group, one);
	all->container_list[all->stats.n_containers++] = one;
}

static int add_containers(struct collected *all, const GetStats *untrusted, struct fault *fault)
{
	if (!untrusted->n_container_ids)
		for (struct container *c = container_first(); c; c = c->next)
			add_container(all, c);
	for (size_t i = 0; i < untrusted->n_container_ids; i++) {
		const char *id = untrusted->container_ids[i];
		struct container *container = id_valid(id) ? container_find(id) : NULL;

		if (!container)
			return fault_set(fault, NOT_FOUND, "stats: %.*s: no such container", ID_MAX, id);
		add_container(all, container);
	}
	return 0;
}

/* "  eth0: <rx bytes, packets, errors, dropped, 4 more> <tx bytes, packets, errors, dropped, ...>" */
static void add_interface(struct collected *all, const char *line)
{
	enum { COUNTERS = 12 };
	size_t at = all->zone.n_interfaces;
	InterfaceStats *one = &all->interfaces[at];
	unsigned long long n[COUNTERS];

	*one = (InterfaceStats)INTERFACE_STATS_INIT;
	if (sscanf(line, " %15[^: ]: %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu", all->names[at],
		   &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6], &n[7], &n[8], &n[9], &n[10],
		   &n[11]) != COUNTERS + 1)
		return;
	if (!interface_name_valid(all->names[at]) || strcmp(all->names[at], "lo") == 0)
		return;
	one->name = all->names[at];
	one->rx_bytes = n[0];
	one->rx_packets = n[1];
	one->rx_errors = n[2];
	one->rx_dropped = n[3];
	one->tx_bytes = n[8];
	one->tx_packets = n[9];
	one->tx_errors = n[10];
	one->tx_dropped = n[11];
	all->interface_list[at] = one;
	all->zone.n_interfaces++;
}

static void add_interfaces(struct collected *all)
{
	FILE *list = fopen("/proc/net/dev", "re");
	char line[512];

	while (list && all->zone.n_interfaces < INTERFACES_MAX && fgets(line, sizeof(line), list))
		add_interface(all, line);
	if (list)
		fclose(list);
}

/* "cpu  user nice system idle iowait irq softirq steal ...": all but idle and iowait, in ticks. */
static uint64_t cpu_ns(void)
{
	unsigned long long user, nice, system, idle, wait, irq, soft;
	char text[512];

	if (fd_cache_read("/proc/stat", text, sizeof(text)) < 0 ||
	    sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait, &irq,
		   &soft) != 7)
		return 0;
	return (user + nice + system + irq + soft) * (SECOND_NS / (uint64_t)sysconf(_SC_CLK_TCK));
}

static uint64_t kilobytes(const char *text, const char *key)
{
	uint64_t value;

	return text_find_number(text, key, &value) ? value * 1024 : 0;
}

static uint64_t smaller(uint64_t value, uint64_t limit)
{
	return limit && limit < value ? limit : value;
}

/* "<all> <resident> ...", in pages. */
static uint64_t agent_rss(void)
{
	unsigned long long pages;
	char text[128];

	if (fd_cache_read("/proc/self/statm", text, sizeof(text)) < 0 || sscanf(text, "%*u %llu", &pages) != 1)
		return 0;
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The zone's group has the figures, except the topmost group of version 2: it does not count memory in use, and the
 * kernel's own figures are used instead. */
static void zone_memory(ZoneStats *zone, const struct usage *usage)
{
	char text[4096];

	if (fd_cache_read("/proc/meminfo", text, sizeof(text)) < 0)
		return;
	zone->memory_total_bytes = smaller(kilobytes(text, "MemTotal:"), usage->memory_limit);
	zone->memory_usage_bytes = usage->memory;
	zone->memory_working_set_bytes = usage->working_set;
	zone->memory_rss_bytes = usage->rss;
	if (!usage->memory) {
		zone->memory_usage_bytes = subtract(zone->memory_total_bytes, kilobytes(text, "MemFree:"));
		zone->memory_working_set_bytes =
			subtract(zone->memory_usage_bytes, kilobytes(text, "Inactive(file):"));
		zone->memory_rss_bytes = kilobytes(text, "AnonPages:");
	}
	zone->memory_available_bytes = smaller(kilobytes(text, "MemAvailable:"),
					       subtract(zone->memory_total_bytes, zone->memory_working_set_bytes));
	zone->swap_total_bytes = kilobytes(text, "SwapTotal:");
	zone->swap_usage_bytes = usage->memory ? usage->swap :
						 subtract(zone->swap_total_bytes, kilobytes(text, "SwapFree:"));
}

void stats_zone_memory(ZoneStats *zone)
{
	struct usage usage;

	usage_of_zone(&usage);
	zone_memory(zone, &usage);
}

static void zone_faults(ZoneStats *zone, const struct usage *usage)
{
	char text[16384];

	zone->page_faults = usage->faults;
	zone->major_page_faults = usage->major_faults;
	if (!usage->faults && fd_cache_read("/proc/vmstat", text, sizeof(text)) >= 0) {
		text_find_number(text, "pgfault", &zone->page_faults);
		text_find_number(text, "pgmajfault", &zone->major_page_faults);
	}
}

/* The topmost group has no pressure files. */
static Pressure *zone_pressure(struct usage *usage, int which, const char *path)
{
	char text[512];

	if (!usage->has_pressure[which] && fd_cache_read(path, text, sizeof(text)) >= 0)
		usage->has_pressure[which] = pressure_parse(text, &usage->pressure[which]);
	return usage->has_pressure[which] ? &usage->pressure[which] : NULL;
}

static void add_zone(struct collected *all)
{
	struct usage *usage = &all->usages[CONTAINERS_MAX];
	ZoneStats *zone = &all->zone;

	*zone = (ZoneStats)ZONE_STATS_INIT;
	usage_of_zone(usage);
	zone->timestamp_ns = usage->read_at_ns;
	zone->cpu_usage_ns = usage->cpu_ns ? usage->cpu_ns : cpu_ns();
	zone_memory(zone, usage);
	zone_faults(zone, usage);
	zone->cpu_pressure = zone_pressure(usage, 0, "/proc/pressure/cpu");
	zone->memory_pressure = zone_pressure(usage, 1, "/proc/pressure/memory");
	zone->io_pressure = zone_pressure(usage, 2, "/proc/pressure/io");
	zone->agent_rss_bytes = agent_rss();
	add_interfaces(all);
	zone->interfaces = all->interface_list;
}

static int collect(struct collected *all, const GetStats *untrusted, struct fault *fault)
{
	all->stats = (Stats)STATS_INIT;
	all->details = untrusted->details;
	if (add_containers(all, untrusted, fault) < 0)
		return -1;
	all->stats.containers = all->container_list;
	if (!untrusted->containers_only) {
		add_zone(all);
		all->stats.zone = &all->zone;
	}
	return 0;
}

void get_stats(struct call *call)
{
	struct collected *all = calloc(1, sizeof(*all));
	Reply reply = REPLY_INIT;
	struct fault fault;

	if (!all) {
		fault_errno(&fault, "stats", "answer");
		call_fail(call, &fault);
		return;
	}
	if (collect(all, call->request->get_stats, &fault) < 0) {
		call_fail(call, &fault);
	} else {
		reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_STATS;
		reply.stats = &all->stats;
		call_reply(call, &reply);
	}
	free(all);
}
