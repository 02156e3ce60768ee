#include "power.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

#include "call.h"
#include "container.h"
#include "link.h"
#include "loop.h"
#include "rootfs.h"
#include "say.h"

/* The host may not read its reply, a process may hang in the kernel: neither keeps the zone up. */
#define FLUSH_DEADLINE_NS (2 * SECOND_NS)
#define KILL_DEADLINE_NS (5 * SECOND_NS)

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>

/* This process never exits, so the build for tests looks for lost memory here. */
static void check_memory(void)
{
	if (__lsan_do_recoverable_leak_check())
		say("memory was lost");
}
#else
static void check_memory(void)
{
}
#endif

static enum { RUNS, FLUSHES, KILLS } phase;
static struct timer deadline;

static void off(void)
{
	struct fault fault;

	for (struct container *c = container_first(); c; c = c->next)
		if (rootfs_unmount(c->directory, &fault) < 0)
			say("power off: %s", fault.text);
	sync();
	check_memory();
	say("power off");
	if (reboot(RB_POWER_OFF) < 0)
		say_errno("reboot", "power off");
	/* In a namespace the kernel ends this process from within the call; if not, end anyway. */
	_exit(1);
}

static void too_late(struct timer *timer)
{
	(void)timer;
	if (phase == KILLS) {
		say("power off: processes did not end in time");
		off();
	}
	phase = KILLS;
	if (kill(-1, SIGKILL) < 0 && errno != ESRCH)
		say_errno("kill", "all processes");
	timer_arm(&deadline, KILL_DEADLINE_NS);
	power_children_reaped();
}

void power_begin(void)
{
	if (phase != RUNS)
		return;
	phase = FLUSHES;
	deadline.fire = too_late;
	timer_arm(&deadline, FLUSH_DEADLINE_NS);
}

void power_go_on(void)
{
	if (phase == FLUSHES && link_flushed())
		too_late(&deadline);
}

void power_children_reaped(void)
{
	siginfo_t info;

	if (phase == KILLS && waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD)
		off();
}

void power_off(struct call *call)
{
	call_done(call);
	power_begin();
}
