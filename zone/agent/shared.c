#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "say.h"
#include "xenbus.h"

/* No cache: the host's side changes at any time.  Each user is told apart, and checked, by this kernel. */
static const char options_9p[] = "trans=xen,version=9p2000.L,cache=none,access=client,msize=131072";

/* The kernel's driver connects when it has time, and until then knows no such tag.  The host gives a domain one
 * 9pfs device, number 0; 4 is XenbusStateConnected. */
static int mount_9p(const char *tag)
{
	if (xenbus_await("device/9pfs/0/state", "4") < 0)
		return -1;
	if (mount(tag, SHARED_DIRECTORY, "9p", 0, options_9p) < 0) {
		say_errno("mount 9p", tag);
		return -1;
	}
	return 0;
}

static int attach(int fd)
{
	int result = move_mount(fd, "", AT_FDCWD, SHARED_DIRECTORY, MOVE_MOUNT_F_EMPTY_PATH);

	if (result < 0)
		say_errno("move_mount", SHARED_DIRECTORY);
	close(fd);
	return result;
}

int shared_mount(const char *how)
{
	uint64_t fd;

	if (!*how)
		return 0;
	if (mkdir(SHARED_DIRECTORY, 0711) < 0 && errno != EEXIST) {
		say_errno("mkdir", SHARED_DIRECTORY);
		return -1;
	}
	if (strncmp(how, "fd:", 3) == 0 && number_parse(how + 3, 1023, &fd))
		return attach((int)fd);
	if (strncmp(how, "9p:", 3) != 0) {
		say("XENPOD_SHARED: %s: neither 9p:<tag> nor fd:<number>", how);
		return -1;
	}
	return mount_9p(how + 3);
}
