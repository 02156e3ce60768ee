#include "verbs/power.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel/call.h"
#include "channel/link.h"
#include "container/container.h"
#include "mounts/rootfs.h"
#include "sys/log.h"
#include "sys/loop.h"
#include "verbs/verbs.h"

/* A host that does not read the reply, or a process that hangs in the kernel, must not keep the zone up. */
#define FLUSH_DEADLINE_NS (2 * SECOND_NS)
#define KILL_DEADLINE_NS (5 * SECOND_NS)

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>

/* This process never exits, therefore the sanitized build looks for leaks here. */
static void check_memory(void)
{
	if (__lsan_do_recoverable_leak_check())
		log_line("memory was lost");
}
#else
static void check_memory(void)
{
}
#endif

static enum { RUNS, FLUSHES, KILLS } phase;
static struct timer deadline;

static void power_down(void)
{
	struct fault fault;

	for (struct container *c = container_first(); c; c = c->next)
		if (rootfs_unmount(c->directory, &fault) < 0)
			log_line("power off: %s", fault.text);
	sync();
	check_memory();
	log_line("power off");
	if (reboot(RB_POWER_OFF) < 0)
		log_errno("reboot", "power off");
	/* In a pid namespace the kernel ends this process within the call; otherwise end here. */
	_exit(1);
}

static void on_deadline(struct timer *timer)
{
	(void)timer;
	if (phase == KILLS) {
		log_line("power off: processes did not end in time");
		power_down();
	}
	phase = KILLS;
	if (kill(-1, SIGKILL) < 0 && errno != ESRCH)
		log_errno("kill", "all processes");
	timer_arm(&deadline, KILL_DEADLINE_NS);
	power_children_reaped();
}

void power_begin(void)
{
	if (phase != RUNS)
		return;
	phase = FLUSHES;
	deadline.fire = on_deadline;
	timer_arm(&deadline, FLUSH_DEADLINE_NS);
}

void power_continue(void)
{
	if (phase == FLUSHES && link_flushed())
		on_deadline(&deadline);
}

void power_children_reaped(void)
{
	siginfo_t info;

	if (phase == KILLS && waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD)
		power_down();
}

void power_off(struct call *call)
{
	call_done(call);
	power_begin();
}
