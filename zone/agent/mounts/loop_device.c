#include "mounts/loop_device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/major.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/log.h"

#define CONTROL "/dev/loop-control"

enum {
	LOOP_NUMBER_MAX = (1 << 20) - 1,
	TRIES_MAX = 64, /* others may take the free device first */
};

/* The kernel names its nodes loop<number>; our names differ, and are removed after use.  A zone that shares a kernel
 * has only our names. */
static int open_free(int control, char *path, size_t size, struct fault *fault)
{
	int number = ioctl(control, LOOP_CTL_GET_FREE);
	int fd;

	if (number < 0 || number > LOOP_NUMBER_MAX)
		return fault_errno(fault, "find a free loop device", CONTROL);
	if (path_format(path, size, "/dev/.loop%d", number) < 0 ||
	    (mknod(path, S_IFBLK | 0600, makedev(LOOP_MAJOR, (unsigned int)number)) < 0 && errno != EEXIST))
		return fault_errno(fault, "mknod", path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		fault_errno(fault, "open", path);
		loop_device_forget_name(path);
	}
	return fd;
}

/* 1: another process was faster. */
static int configure(int fd, int file, const char *path, struct fault *fault)
{
	const struct loop_config config = {
		.fd = (unsigned int)file,
		/* Direct: otherwise this kernel would cache each block twice. */
		.info = { .lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO },
	};

	if (ioctl(fd, LOOP_CONFIGURE, &config) == 0)
		return 0;
	if (errno == EBUSY)
		return 1;
	return fault_errno(fault, "configure loop device", path);
}

static int take(int control, int file, char *path, size_t size, struct fault *fault)
{
	for (int tries = 0; tries < TRIES_MAX; tries++) {
		int fd = open_free(control, path, size, fault);
		int result;

		if (fd < 0)
			return -1;
		result = configure(fd, file, path, fault);
		if (result == 0)
			return fd;
		close(fd);
		loop_device_forget_name(path);
		if (result < 0)
			return -1;
	}
	return fault_set(fault, RESOURCE_EXHAUSTED, "take a loop device: others take every free one");
}

int loop_device_take(int file, char *path, size_t size, struct fault *fault)
{
	int control = open(CONTROL, O_RDWR | O_CLOEXEC);
	int fd;

	if (control < 0 && errno == ENOENT)
		return fault_set(fault, FAILED_PRECONDITION,
				 "take a loop device: the zone's kernel has none (CONFIG_BLK_DEV_LOOP)");
	if (control < 0)
		return fault_errno(fault, "open", CONTROL);
	fd = take(control, file, path, size, fault);
	close(control);
	return fd;
}

void loop_device_forget_name(const char *path)
{
	if (unlink(path) < 0 && errno != ENOENT)
		log_errno("unlink", path);
}
