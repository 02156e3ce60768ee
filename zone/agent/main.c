/* The zone's agent: process 1 of a guest, or of the fake's namespaces.
 *
 * It leaves oom_score_adj alone: the kernel spares a guest's first process anyway, and crun and the
 * containers would inherit the exemption. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "addons.h"
#include "boot.h"
#include "cgroup.h"
#include "facts.h"
#include "link.h"
#include "loop.h"
#include "name.h"
#include "network.h"
#include "power.h"
#include "reaper.h"
#include "say.h"
#include "shared.h"
#include "transport.h"

static const char *setting(const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	return value && *value ? value : otherwise;
}

/* Until the host says better. */
static void take_name(const char *zone)
{
	if (hostname_valid(zone) && sethostname(zone, strlen(zone)) < 0)
		say_errno("sethostname", zone);
}

int main(void)
{
	const struct transport *transport;
	const Hello *hello;

	/* 1. The guest, as a process expects it. */
	if (boot_root() < 0 || boot_mounts() < 0 || boot_console() < 0)
		return 1;
	if (boot_modules() < 0 || cgroup_setup() < 0 || network_loopback() < 0 || boot_directories() < 0 ||
	    addons_mount(setting("XENPOD_ADDONS", "")) < 0 || shared_mount(setting("XENPOD_SHARED", "")) < 0)
		return 1;
	take_name(setting("XENPOD_ZONE", "zone"));

	/* 2. One loop, one place for signals. */
	if (loop_open() < 0 || reaper_open() < 0)
		return 1;

	/* 3. The channel to the host. */
	hello = facts_hello();
	transport = hello ? transport_open(setting("XENPOD_CHANNEL", "vchan")) : NULL;
	if (!transport)
		return 1;
	link_start(transport, hello);
	say("zone %s is up", setting("XENPOD_ZONE", "(unnamed)"));

	/* 4. Serve until the power goes. */
	for (bool more = false;;) {
		loop_round(more);
		more = link_turn();
		power_go_on();
	}
}
