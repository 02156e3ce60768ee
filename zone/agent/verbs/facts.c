/* Facts of the zone: Hello and GetFacts; its size: ResizeZone; a disk: FindDevice. */
#include "verbs/facts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "channel/call.h"
#include "sys/cgroup.h"
#include "sys/cpus.h"
#include "sys/device.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/loop.h"
#include "sys/name.h"
#include "verbs/stats.h"
#include "verbs/verbs.h"

/* The first line of a file; "" if missing. */
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

	if (getrandom(boot_id, sizeof(boot_id), GRND_NONBLOCK) < 0 && errno == EAGAIN)
		log_line("the first random bytes have to wait");
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
	hello.anonymous_volumes = true;
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

/* Starts the CPUs that the host has given, and reports the zone's present size. */
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

struct finding {
	struct call *call;
	struct device_wait wait;
};

static int look(const char *path, DeviceFound *found, struct fault *fault)
{
	struct stat device;
	uint64_t size;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return fault_errno(fault, "open", path);
	if (fstat(fd, &device) < 0 || ioctl(fd, BLKGETSIZE64, &size) < 0) {
		fault_errno(fault, "find device", path);
		close(fd);
		return -1;
	}
	close(fd);
	found->major = major(device.st_rdev);
	found->minor = minor(device.st_rdev);
	found->size_bytes = size;
	fd = open(path, O_RDONLY | O_EXCL | O_NONBLOCK | O_CLOEXEC);
	found->in_use = fd < 0 && errno == EBUSY;
	if (fd >= 0)
		close(fd);
	return 0;
}

static int describe(const FindDevice *request, DeviceFound *found, struct fault *fault)
{
	char path[32];

	if (request->gone)
		return 0;
	if (path_format(path, sizeof(path), "/dev/%s", request->name) < 0)
		return fault_errno(fault, "find device", request->name);
	return look(path, found, fault);
}

static void answer(struct call *call)
{
	DeviceFound found = DEVICE_FOUND_INIT;
	Reply reply = REPLY_INIT;
	struct fault fault;

	if (describe(call->request->find_device, &found, &fault) < 0) {
		call_fail(call, &fault);
		return;
	}
	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_DEVICE;
	reply.device = &found;
	call_reply(call, &reply);
}

static void waited(struct device_wait *wait, const struct fault *fault)
{
	struct finding *finding = container_of(wait, struct finding, wait);
	struct call *call = finding->call;

	free(finding);
	if (fault)
		call_fail(call, fault);
	else
		answer(call);
}

static int begin(struct call *call, struct fault *fault)
{
	const FindDevice *request = call->request->find_device;
	struct finding *finding;
	int result;

	if (!device_name_valid(request->name))
		return fault_set(fault, INVALID_ARGUMENT, "find device: not a disk's name");
	finding = calloc(1, sizeof(*finding));
	if (!finding)
		return fault_errno(fault, "find device", request->name);
	finding->call = call;
	finding->wait.done = waited;
	result = request->gone ? device_gone_begin(&finding->wait, request->name, fault) :
				 device_wait_begin(&finding->wait, request->name, fault);
	if (result != 0)
		free(finding);
	return result;
}

void find_device(struct call *call)
{
	struct fault fault;
	int result = begin(call, &fault);

	if (result < 0)
		call_fail(call, &fault);
	else if (result > 0)
		answer(call);
}
