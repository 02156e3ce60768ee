#include "mounts/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "mounts/ext4.h"
#include "mounts/loop_device.h"
#include "sys/file.h"

#define LIMITS SCRATCH_DIRECTORY "/limits"

static char used[20];
static const char *const kinds[] = { [SCRATCH_LAYER] = "layer", [SCRATCH_VOLUME] = "volume" };

const char *scratch_disk(void)
{
	return used;
}

void scratch_use(const char *disk)
{
	snprintf(used, sizeof(used), "%s", disk);
}

static int format(const char *device, struct fault *fault)
{
	uint64_t bytes;
	int fd = open(device, O_RDWR | O_CLOEXEC);
	int result;

	if (fd < 0)
		return fault_errno(fault, "open", device);
	result = ioctl(fd, BLKGETSIZE64, &bytes);
	if (result == 0)
		result = ext4_format(fd, bytes);
	/* No sync needed: the kernel reads the written bytes through the same cache. */
	if (result < 0)
		fault_errno(fault, "make file system", device);
	close(fd);
	return result;
}

static int mount_ext4(const char *device, const char *path, const char *options, struct fault *fault)
{
	if (mount(device, path, "ext4", MS_NOATIME, options) == 0)
		return 0;
	if (errno == ENODEV)
		return fault_set(fault, FAILED_PRECONDITION,
				 "mount scratch disk: %s: the zone's kernel has no ext4 (CONFIG_EXT4_FS)", device);
	return fault_errno(fault, "mount ext4", device);
}

/* discard: the host gets the blocks of removed files back. */
int scratch_make(const char *disk, struct fault *fault)
{
	static const char *const directories[] = {
		SCRATCH_DIRECTORY "/layer",
		SCRATCH_DIRECTORY "/volume",
		LIMITS,
		SCRATCH_TRASH,
	};
	char device[32];

	if (path_format(device, sizeof(device), "/dev/%s", disk) < 0)
		return fault_errno(fault, "mount scratch disk", disk);
	if (mkdir(SCRATCH_DIRECTORY, 0711) < 0 && errno != EEXIST)
		return fault_errno(fault, "mkdir", SCRATCH_DIRECTORY);
	if (format(device, fault) < 0 || mount_ext4(device, SCRATCH_DIRECTORY, "discard", fault) < 0)
		return -1;
	for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++)
		if (mkdir(directories[i], 0711) < 0)
			return fault_errno(fault, "mkdir", directories[i]);
	return 0;
}

static int directory_path(char *path, size_t size, enum scratch_kind kind, const char *name)
{
	return path_format(path, size, SCRATCH_DIRECTORY "/%s/%s", kinds[kind], name);
}

static int limit_path(char *path, size_t size, enum scratch_kind kind, const char *name)
{
	return path_format(path, size, LIMITS "/%s-%s", kinds[kind], name);
}

int scratch_layer_path(char *path, unsigned long size, const char *name)
{
	return directory_path(path, size, SCRATCH_LAYER, name);
}

static int mount_directory(enum scratch_kind kind, const char *name, const char *path, struct fault *fault)
{
	char directory[PATH_SIZE];

	if (directory_path(directory, sizeof(directory), kind, name) < 0 || mkdir(directory, 0700) < 0)
		return fault_errno(fault, "mkdir on scratch disk", name);
	if (mount(directory, path, NULL, MS_BIND, NULL) == 0)
		return 0;
	fault_errno(fault, "bind", directory);
	rmdir(directory);
	return -1;
}

static int does_not_fit(const char *name, uint64_t size, struct fault *fault)
{
	struct statvfs disk;

	if (errno != ENOSPC || statvfs(SCRATCH_DIRECTORY, &disk) < 0)
		return fault_errno(fault, "reserve on scratch disk", name);
	return fault_set(fault, RESOURCE_EXHAUSTED,
			 "reserve on scratch disk: %s: its limit takes %llu bytes, of the disk's %llu are free %llu",
			 name, (unsigned long long)size, (unsigned long long)disk.f_blocks * disk.f_frsize,
			 (unsigned long long)disk.f_bavail * disk.f_frsize);
}

/* Blocks are reserved: a file system on a full disk gives I/O errors instead of ENOSPC. */
static int make_limited(const char *file, const char *name, uint64_t limit, const char *path, struct fault *fault)
{
	uint64_t size = ext4_size_for(limit);
	char device[32];
	int fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int loop, result = -1;

	if (fd < 0)
		return fault_errno(fault, "make on scratch disk", name);
	if (fallocate(fd, 0, 0, (off_t)size) < 0) {
		does_not_fit(name, size, fault);
	} else if (ext4_format(fd, size) < 0) {
		fault_errno(fault, "make file system", name);
	} else if ((loop = loop_device_take(fd, device, sizeof(device), fault)) >= 0) {
		result = mount_ext4(device, path, NULL, fault);
		close(loop);
		loop_device_forget_name(device);
	}
	close(fd);
	return result;
}

static int mount_limited(enum scratch_kind kind, const char *name, uint64_t limit, const char *path,
			 struct fault *fault)
{
	char file[PATH_SIZE];

	if (limit_path(file, sizeof(file), kind, name) < 0)
		return fault_errno(fault, "make on scratch disk", name);
	if (make_limited(file, name, limit, path, fault) < 0) {
		unlink(file);
		return -1;
	}
	if (chmod(path, 0700) == 0)
		return 0;
	fault_errno(fault, "chmod", path);
	umount2(path, MNT_DETACH);
	unlink(file);
	return -1;
}

/* A limit above the disk's size is no limit of its own. */
static bool is_the_disks(uint64_t limit)
{
	struct statvfs disk;

	return !limit || (statvfs(SCRATCH_DIRECTORY, &disk) == 0 && limit >= (uint64_t)disk.f_blocks * disk.f_frsize);
}

int scratch_mount(enum scratch_kind kind, const char *name, uint64_t limit, const char *path, struct fault *fault)
{
	if (scratch_forget(kind, name, fault) < 0)
		return -1;
	if (is_the_disks(limit))
		return mount_directory(kind, name, path, fault);
	return mount_limited(kind, name, limit, path, fault);
}

static int throw_away(const char *directory, struct fault *fault)
{
	static unsigned int thrown;
	char trash[PATH_SIZE];

	if (path_format(trash, sizeof(trash), SCRATCH_TRASH "/%u", thrown++) < 0)
		return fault_errno(fault, "remove from scratch disk", directory);
	if (rename(directory, trash) < 0 && errno != ENOENT)
		return fault_errno(fault, "remove from scratch disk", directory);
	return 0;
}

int scratch_forget(enum scratch_kind kind, const char *name, struct fault *fault)
{
	char path[PATH_SIZE];

	if (!*used)
		return 0;
	if (limit_path(path, sizeof(path), kind, name) < 0 || (unlink(path) < 0 && errno != ENOENT))
		return fault_errno(fault, "remove from scratch disk", name);
	if (directory_path(path, sizeof(path), kind, name) < 0)
		return fault_errno(fault, "remove from scratch disk", name);
	return throw_away(path, fault);
}
