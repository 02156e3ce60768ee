/* FindDevice: a disk as the zone has it, or that it is gone. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "channel/call.h"
#include "sys/device.h"
#include "sys/file.h"
#include "sys/name.h"
#include "verbs/verbs.h"

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
