/* SyncClock: corrects the zone's clock by what the host says, and reads it.
 *
 * A zone without a kernel of its own has the host's clock, and nobody sets that: XENPOD_CLOCK tells them apart. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>
#include <time.h>

#include "channel/call.h"
#include "sys/loop.h"
#include "verbs/verbs.h"

#define NS_PER_US 1000
/* As long as times are valid: some 140 years. */
#define LATEST_NS (INT64_C(1) << 62)

static bool own_clock(void)
{
	const char *setting = getenv("XENPOD_CLOCK");

	return setting && strcmp(setting, "own") == 0;
}

/* 0 ends the last one. */
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

static int correct(const SyncClock *request, struct fault *fault)
{
	if (!request->add_ns)
		return 0;
	if (!own_clock())
		return fault_set(fault, FAILED_PRECONDITION, "set clock: CLOCK_REALTIME: it is the host's");
	return request->step ? step(request->add_ns, fault) : slew(request->add_ns, fault);
}

void sync_clock(struct call *call)
{
	ClockReading reading = CLOCK_READING_INIT;
	Reply reply = REPLY_INIT;
	struct fault fault;

	if (correct(call->request->sync_clock, &fault) < 0) {
		call_fail(call, &fault);
		return;
	}
	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_CLOCK;
	reply.clock = &reading;
	reading.realtime_ns = wall_ns();
	call_reply(call, &reply);
}
