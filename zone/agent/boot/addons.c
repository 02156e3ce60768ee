#include "boot/addons.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot/module.h"
#include "sys/device.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/loop.h"
#include "sys/name.h"

#define MODULES ADDONS_DIRECTORY "/modules"
#define FIRMWARE ADDONS_DIRECTORY "/firmware"
#define FIRMWARE_PATH "/sys/module/firmware_class/parameters/path"

/* Loaded unless built in or loaded from the initramfs. */
static const char *const wanted[] = {
	"xen-gntalloc", "xen-gntdev", "xen-evtchn", "xen-netfront", "erofs", "overlay", "9pnet-fd", "9p",
	"fuse",		"tun",	       "loop",
};

/* ext4 requests crc32c at mount time; modules.dep does not list this need. */
static const char *const for_scratch[] = { "crc32c-generic", "ext4" };

static bool is_directory(const char *path)
{
	struct stat found;

	return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

int addons_mount(const char *disk, bool scratch)
{
	char device[32];

	if (!*disk)
		return 0;
	if (!device_name_valid(disk) || path_format(device, sizeof(device), "/dev/%s", disk) < 0) {
		log_line("XENPOD_ADDONS: %s: not a disk", disk);
		return -1;
	}
	if (device_wait_at_boot(disk) < 0)
		return -1;
	if (mkdir(ADDONS_DIRECTORY, 0755) < 0 && errno != EEXIST) {
		log_errno("mkdir", ADDONS_DIRECTORY);
		return -1;
	}
	if (mount(device, ADDONS_DIRECTORY, "squashfs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0) {
		log_errno("mount the kernel's addons", device);
		return -1;
	}
	if (is_directory(FIRMWARE) && file_overwrite(FIRMWARE_PATH, FIRMWARE) < 0)
		log_errno("write", FIRMWARE_PATH);
	if (!is_directory(MODULES))
		return 0;
	if (scratch && modules_load(MODULES, for_scratch, ARRAY_LEN(for_scratch)) < 0)
		return -1;
	return modules_load(MODULES, wanted, ARRAY_LEN(wanted));
}
