#include "boot/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot/xenbus.h"
#include "sys/file.h"
#include "sys/log.h"

/* cache=none: the host's side may change at any time.  access=client: this kernel checks each user's rights. */
static const char options_9p[] = "trans=xen,version=9p2000.L,cache=none,access=client,msize=131072";

/* The kernel's driver connects in the background, and until then the tag is unknown.  A domain has one 9pfs device,
 * number 0; 4 is XenbusStateConnected. */
static int mount_9p(const char *tag)
{
	if (xenbus_await("device/9pfs/0/state", "4") < 0)
		return -1;
	if (mount(tag, SHARED_DIRECTORY, "9p", 0, options_9p) < 0) {
		log_errno("mount 9p", tag);
		return -1;
	}
	return 0;
}

static int attach(int fd)
{
	int result = move_mount(fd, "", AT_FDCWD, SHARED_DIRECTORY, MOVE_MOUNT_F_EMPTY_PATH);

	if (result < 0)
		log_errno("move_mount", SHARED_DIRECTORY);
	close(fd);
	return result;
}

int shared_mount(const char *source)
{
	uint64_t fd;

	if (!*source)
		return 0;
	if (mkdir(SHARED_DIRECTORY, 0711) < 0 && errno != EEXIST) {
		log_errno("mkdir", SHARED_DIRECTORY);
		return -1;
	}
	if (strncmp(source, "fd:", 3) == 0 && number_parse(source + 3, 1023, &fd))
		return attach((int)fd);
	if (strncmp(source, "9p:", 3) != 0) {
		log_line("XENPOD_SHARED: %s: neither 9p:<tag> nor fd:<number>", source);
		return -1;
	}
	return mount_9p(source + 3);
}
