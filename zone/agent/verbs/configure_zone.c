/* ConfigureZone: host name, user namespace, kernel parameters.  SyncClock: the clock. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "channel/call.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/loop.h"
#include "sys/name.h"
#include "sys/pod_userns.h"
#include "verbs/verbs.h"

/* The fault of a parameter that this kernel lacks or protects, or of a value that it refuses. */
static int kernel_refuses(const char *name, struct fault *fault)
{
	int error = errno;

	switch (error) {
	case EINVAL:
	case ERANGE:
		return fault_set(fault, INVALID_ARGUMENT, "sysctl: %s: %s", name, strerror(error));
	case ENOENT:
	case EACCES:
	case EPERM:
	case EROFS:
		return fault_set(fault, FAILED_PRECONDITION, "sysctl: %s: %s", name, strerror(error));
	default:
		return fault_errno(fault, "sysctl", name);
	}
}

/* Dots separate the parts of a name, unless it has slashes: then dots belong to a part (interface names). */
static int set_parameter(const char *untrusted_name, const char *value, struct fault *fault)
{
	char path[320];

	if (!sysctl_valid(untrusted_name))
		return fault_set(fault, INVALID_ARGUMENT, "sysctl: not a parameter's name");
	if (path_format(path, sizeof(path), "/proc/sys/%s", untrusted_name) < 0)
		return fault_errno(fault, "sysctl", untrusted_name);
	if (!strchr(untrusted_name, '/'))
		for (char *at = path + strlen("/proc/sys/"); *at; at++)
			if (*at == '.')
				*at = '/';
	if (pod_userns_write(path, value) < 0)
		return kernel_refuses(untrusted_name, fault);
	return 0;
}

static int configure(const ConfigureZone *request, struct fault *fault)
{
	if (request->hostname[0]) {
		if (!hostname_valid(request->hostname))
			return fault_set(fault, INVALID_ARGUMENT, "hostname: not a host name");
		if (sethostname(request->hostname, strlen(request->hostname)) < 0)
			return fault_errno(fault, "sethostname", request->hostname);
	}
	/* Before the kernel parameters: this step enters their namespaces. */
	if (request->id_mapping &&
	    pod_userns_make(request->id_mapping->host_id, request->id_mapping->length, fault) < 0)
		return -1;
	for (size_t i = 0; i < request->n_sysctls; i++)
		if (set_parameter(request->sysctls[i]->key, request->sysctls[i]->value, fault) < 0)
			return -1;
	return 0;
}

void configure_zone(struct call *call)
{
	struct fault fault;

	call_end(call, configure(call->request->configure_zone, &fault), &fault);
}

void sync_clock(struct call *call)
{
	const SyncClock *request = call->request->sync_clock;
	ClockReading reading = CLOCK_READING_INIT;
	Reply reply = REPLY_INIT;
	struct fault fault;

	if (request->add_ns && clock_add(request->add_ns, request->step, &fault) < 0) {
		call_fail(call, &fault);
		return;
	}
	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_CLOCK;
	reply.clock = &reading;
	reading.realtime_ns = wall_ns();
	call_reply(call, &reply);
}
