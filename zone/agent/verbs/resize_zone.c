/* ResizeZone: starts the CPUs that the host has given, and says how large the zone is by now. */
#include "channel/call.h"
#include "sys/cpus.h"
#include "verbs/stats.h"
#include "verbs/verbs.h"

void resize_zone(struct call *call)
{
	ZoneStats memory = ZONE_STATS_INIT;
	GuestSize size = GUEST_SIZE_INIT;
	Reply reply = REPLY_INIT;

	cpus_start(call->request->resize_zone->cpus);
	stats_zone_memory(&memory);
	size.cpus = cpus_running();
	size.memory_total_bytes = memory.memory_total_bytes;
	size.memory_available_bytes = memory.memory_available_bytes;
	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_SIZE;
	reply.size = &size;
	call_reply(call, &reply);
}
