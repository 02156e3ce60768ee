#include "verbs/facts.h"

#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "channel/call.h"
#include "sys/cgroup.h"
#include "sys/cpus.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/loop.h"
#include "verbs/stats.h"
#include "verbs/verbs.h"

/* The first line of a file, "" where there is none. */
static char *line_of(const char *path, char *text, size_t size)
{
	if (file_read(path, text, size) < 0)
		text[0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return text;
}

const Hello *facts_hello(void)
{
	static Hello hello = HELLO_INIT;
	static uint8_t boot_id[16];
	static struct utsname system;
	static char hypervisor[64];

	if (getrandom(boot_id, sizeof(boot_id), 0) != (ssize_t)sizeof(boot_id)) {
		log_errno("getrandom", "boot id");
		return NULL;
	}
	if (uname(&system) < 0) {
		log_errno("uname", "kernel");
		return NULL;
	}
	hello.boot_id = (ProtobufCBinaryData){ sizeof(boot_id), boot_id };
	hello.file_volumes = true;
	hello.resizes = true;
	hello.agent_version = (char *)AGENT_VERSION;
	hello.kernel_release = system.release;
	hello.hypervisor_type = line_of("/sys/hypervisor/type", hypervisor, sizeof(hypervisor));
	return &hello;
}

void get_facts(struct call *call)
{
	Facts facts = FACTS_INIT;
	Reply reply = REPLY_INIT;
	struct utsname system;
	char hypervisor[64], pid1[64];
	struct fault fault;

	if (uname(&system) < 0) {
		fault_errno(&fault, "uname", "kernel");
		call_fail(call, &fault);
		return;
	}
	facts.kernel_release = system.release;
	facts.kernel_version = system.version;
	facts.hostname = system.nodename;
	facts.hypervisor_type = line_of("/sys/hypervisor/type", hypervisor, sizeof(hypervisor));
	facts.pid1 = line_of("/proc/1/comm", pid1, sizeof(pid1));
	facts.uptime_ns = now_ns();
	facts.cpus = cpus_running();
	facts.cgroup = (char *)(cgroup_is_v2() ? "v2" : "v1");
	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_FACTS;
	reply.facts = &facts;
	call_reply(call, &reply);
}

/* Starts the CPUs that the host has given, and says how large the zone is by now. */
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
