/* A zone without its own kernel uses the host's clock and must not set it; XENPOD_CLOCK tells the difference. */
#include "sys/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>
#include <time.h>

#include "sys/loop.h"

#define NS_PER_US 1000
/* The valid range of times: some 140 years. */
#define LATEST_NS (INT64_C(1) << 62)

bool clock_own(void)
{
	const char *setting = getenv("XENPOD_CLOCK");

	return setting && strcmp(setting, "own") == 0;
}

/* 0 ends the previous adjustment. */
static int slew(int64_t add_ns, struct fault *fault)
{
	struct timex change = { .modes = ADJ_OFFSET_SINGLESHOT, .offset = (long)(add_ns / NS_PER_US) };

	if (adjtimex(&change) < 0)
		return fault_errno(fault, "adjtimex", "CLOCK_REALTIME");
	return 0;
}

static int step(int64_t add_ns, struct fault *fault)
{
	struct timespec at;
	int64_t wanted;

	if (slew(0, fault) < 0)
		return -1;
	if (__builtin_add_overflow(wall_ns(), add_ns, &wanted) || wanted < 0 || wanted > LATEST_NS)
		return fault_set(fault, INVALID_ARGUMENT, "clock_settime: CLOCK_REALTIME: no such time");
	at.tv_sec = wanted / (int64_t)SECOND_NS;
	at.tv_nsec = wanted % (int64_t)SECOND_NS;
	if (clock_settime(CLOCK_REALTIME, &at) < 0)
		return fault_errno(fault, "clock_settime", "CLOCK_REALTIME");
	return 0;
}

int clock_add(int64_t add_ns, bool at_once, struct fault *fault)
{
	if (!clock_own())
		return fault_set(fault, FAILED_PRECONDITION, "set clock: CLOCK_REALTIME: it is the host's");
	return at_once ? step(add_ns, fault) : slew(add_ns, fault);
}
