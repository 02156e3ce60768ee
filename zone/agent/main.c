/* The zone's agent: process 1 of a guest, or of a fake zone's namespaces.
 *
 * It does not change oom_score_adj: the kernel spares a guest's first process in any case, and crun and the containers
 * would inherit the exemption. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot/addons.h"
#include "boot/boot.h"
#include "boot/seed.h"
#include "boot/shared.h"
#include "channel/call.h"
#include "channel/link.h"
#include "channel/transport.h"
#include "container/container.h"
#include "container/job.h"
#include "container/mount_scratch.h"
#include "container/shared.h"
#include "sys/clock.h"
#include "sys/cpus.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/loop.h"
#include "sys/name.h"
#include "sys/netlink.h"
#include "sys/reaper.h"
#include "sys/steps.h"
#include "verbs/facts.h"
#include "verbs/power.h"
#include "verbs/verbs.h"

#define OP(name) XENPOD__CHANNEL__V1__REQUEST__OP_##name

static verb *const verbs[] = {
	[OP(CONFIGURE_ZONE)] = configure_zone,
	[OP(CONFIGURE_NETWORK)] = configure_network,
	[OP(CREATE_CONTAINER)] = create_container,
	[OP(START_CONTAINER)] = start_container,
	[OP(SIGNAL_PROCESS)] = signal_process,
	[OP(DELETE_CONTAINER)] = delete_container,
	[OP(EXEC_PROCESS)] = exec_process,
	[OP(DELETE_EXEC)] = delete_exec,
	[OP(RESIZE_TERMINAL)] = resize_terminal,
	[OP(LIST_PROCESSES)] = list_processes,
	[OP(GET_STATS)] = get_stats,
	[OP(GET_FACTS)] = get_facts,
	[OP(POWER_OFF)] = power_off,
	[OP(UPDATE_CONTAINER)] = update_container,
	[OP(DIAL)] = dial,
	[OP(PUT_FILES)] = put_files,
	[OP(READ_FILE)] = read_file,
	[OP(MOUNT_SHARED)] = mount_shared,
	[OP(MOUNT_SCRATCH)] = mount_scratch,
	[OP(RESIZE_ZONE)] = resize_zone,
	[OP(SYNC_CLOCK)] = sync_clock,
	[OP(FIND_DEVICE)] = find_device,
};

static const char *setting(const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	return value && *value ? value : otherwise;
}

/* Sets the name until ConfigureZone changes it. */
static void set_first_name(const char *zone)
{
	if (hostname_valid(zone) && sethostname(zone, strlen(zone)) < 0)
		log_errno("sethostname", zone);
}

static const struct transport *open_transport(const char *channel)
{
	uint64_t fd;

	if (strcmp(channel, "vchan") == 0)
		return vchan_open();
	if (strncmp(channel, "fd:", 3) == 0 && number_parse(channel + 3, 1023, &fd))
		return socket_open((int)fd);
	log_line("XENPOD_CHANNEL: %s: neither vchan nor fd:<number>", channel);
	return NULL;
}

static bool child_ended(pid_t pid, int status, int64_t at_ns)
{
	return job_ended(pid, status) || containers_child_ended(pid, status, at_ns);
}

static void children_collected(void)
{
	jobs_finish_ended();
	power_children_reaped();
}

static const struct reaper_hooks hooks = {
	.ended = child_ended,
	.keeps_unknown = jobs_running,
	.collected = children_collected,
	.stop = power_begin,
};

static struct steps boot;

static int prepare(bool scratch, uint64_t begun)
{
	if (clock_own())
		steps_add(&boot, STEP(KERNEL), 0, begun);
	if (boot_root() < 0 || boot_mounts() < 0 || boot_console() < 0)
		return -1;
	steps_next(&boot, STEP(MOUNTS), begun);
	if (boot_modules(scratch) < 0)
		return -1;
	steps_next(&boot, STEP(MODULES), begun);
	if (boot_cgroups() < 0)
		return -1;
	steps_next(&boot, STEP(CGROUPS), begun);
	if (interface_loopback_up() < 0 || boot_directories() < 0 ||
	    addons_mount(setting("XENPOD_ADDONS", ""), scratch) < 0 || boot_devices() < 0 ||
	    shared_prepare(setting("XENPOD_SHARED", "")) < 0 || cpus_prepare(setting("XENPOD_CPUS", "")) < 0)
		return -1;
	seed_take(setting("XENPOD_SEED", ""));
	steps_next(&boot, STEP(DEVICES), begun);
	return 0;
}

int main(void)
{
	const struct transport *transport;
	const Hello *hello;

	/* 1. Prepare the guest. */
	if (prepare(*setting("XENPOD_SCRATCH", ""), now_ns()) < 0)
		return 1;
	set_first_name(setting("XENPOD_ZONE", "zone"));

	/* 2. Open the loop, which collects signals and children. */
	if (loop_open() < 0 || reaper_open(&hooks) < 0)
		return 1;

	/* 3. Open the channel to the host. */
	hello = facts_hello();
	transport = hello ? open_transport(setting("XENPOD_CHANNEL", "vchan")) : NULL;
	if (!transport)
		return 1;
	calls_serve(verbs, ARRAY_LEN(verbs));
	link_start(transport, hello, &boot, call_begin);
	log_line("zone %s is up", setting("XENPOD_ZONE", "(unnamed)"));

	/* 4. Serve until the power goes off. */
	for (bool more = false;;) {
		loop_run_once(more);
		more = link_step();
		power_continue();
	}
}
