/* GetStats: containers from their control groups, the zone from proc and sysfs. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call.h"
#include "cgroup.h"
#include "container.h"
#include "file.h"
#include "loop.h"
#include "rootfs.h"

enum { INTERFACES_MAX = 32 };

struct collected {
	ContainerStats containers[CONTAINERS_MAX];
	ContainerStats *container_list[CONTAINERS_MAX];
	InterfaceStats interfaces[INTERFACES_MAX];
	InterfaceStats *interface_list[INTERFACES_MAX];
	char names[INTERFACES_MAX][16];
	ZoneStats zone;
	Stats stats;
};

static void add_container(struct collected *all, struct container *container)
{
	ContainerStats *one = &all->containers[all->stats.n_containers];

	if (container->init.state == PREPARING || all->stats.n_containers == CONTAINERS_MAX)
		return;
	*one = (ContainerStats)CONTAINER_STATS_INIT;
	one->id = container->id;
	one->timestamp_ns = wall_ns();
	cgroup_stats(container->id, one);
	if (rootfs_usage(container->directory, &one->writable_layer_bytes, &one->writable_layer_inodes) < 0)
		one->writable_layer_bytes = one->writable_layer_inodes = 0;
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

static uint64_t counter(const char *interface, const char *name)
{
	char path[96], text[32];
	uint64_t value;

	if (path_set(path, sizeof(path), "/sys/class/net/%s/statistics/%s", interface, name) < 0 ||
	    file_read(path, text, sizeof(text)) < 0 || !text_number(text, "", &value))
		return 0;
	return value;
}

static void add_interface(struct collected *all, const char *name)
{
	size_t at = all->zone.n_interfaces;
	InterfaceStats *one = &all->interfaces[at];

	*one = (InterfaceStats)INTERFACE_STATS_INIT;
	strcpy(all->names[at], name);
	one->name = all->names[at];
	one->rx_bytes = counter(name, "rx_bytes");
	one->rx_packets = counter(name, "rx_packets");
	one->rx_errors = counter(name, "rx_errors");
	one->tx_bytes = counter(name, "tx_bytes");
	one->tx_packets = counter(name, "tx_packets");
	one->tx_errors = counter(name, "tx_errors");
	all->interface_list[at] = one;
	all->zone.n_interfaces++;
}

static void add_interfaces(struct collected *all)
{
	DIR *directory = opendir("/sys/class/net");
	struct dirent *entry;

	while (directory && (entry = readdir(directory)))
		if (interface_name_valid(entry->d_name) && strcmp(entry->d_name, "lo") != 0 &&
		    all->zone.n_interfaces < INTERFACES_MAX)
			add_interface(all, entry->d_name);
	if (directory)
		closedir(directory);
}

/* "cpu  user nice system idle iowait irq softirq steal ...": all but idle and iowait, in ticks. */
static uint64_t cpu_ns(void)
{
	unsigned long long user, nice, system, idle, wait, irq, soft;
	char text[512];

	if (file_read("/proc/stat", text, sizeof(text)) < 0 ||
	    sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait, &irq,
		   &soft) != 7)
		return 0;
	return (user + nice + system + irq + soft) * (SECOND_NS / (uint64_t)sysconf(_SC_CLK_TCK));
}

static uint64_t kilobytes(const char *path, const char *key)
{
	char text[4096];
	uint64_t value;

	if (file_read(path, text, sizeof(text)) < 0 || !text_number(text, key, &value))
		return 0;
	return value * 1024;
}

static void add_zone(struct collected *all)
{
	all->zone = (ZoneStats)ZONE_STATS_INIT;
	all->zone.timestamp_ns = wall_ns();
	all->zone.memory_total_bytes = kilobytes("/proc/meminfo", "MemTotal:");
	all->zone.memory_available_bytes = kilobytes("/proc/meminfo", "MemAvailable:");
	all->zone.cpu_usage_ns = cpu_ns();
	all->zone.agent_rss_bytes = kilobytes("/proc/self/status", "VmRSS:");
	add_interfaces(all);
	all->zone.interfaces = all->interface_list;
}

static int collect(struct collected *all, const GetStats *untrusted, struct fault *fault)
{
	all->stats = (Stats)STATS_INIT;
	if (add_containers(all, untrusted, fault) < 0)
		return -1;
	add_zone(all);
	all->stats.containers = all->container_list;
	all->stats.zone = &all->zone;
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
