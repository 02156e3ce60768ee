#include "boot/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/log.h"

static bool exists, served;

static int attach(int fd)
{
	int result = move_mount(fd, "", AT_FDCWD, SHARED_DIRECTORY, MOVE_MOUNT_F_EMPTY_PATH);

	if (result < 0)
		log_errno("move_mount", SHARED_DIRECTORY);
	close(fd);
	return result;
}

int shared_prepare(const char *source)
{
	uint64_t fd;

	if (!*source)
		return 0;
	if (mkdir(SHARED_DIRECTORY, 0711) < 0 && errno != EEXIST) {
		log_errno("mkdir", SHARED_DIRECTORY);
		return -1;
	}
	exists = true;
	served = strcmp(source, "vchan") == 0;
	if (served)
		return 0;
	if (strncmp(source, "fd:", 3) == 0 && number_parse(source + 3, 1023, &fd))
		return attach((int)fd);
	log_line("XENPOD_SHARED: %s: neither vchan nor fd:<number>", source);
	return -1;
}

bool shared_is_served(void)
{
	return served;
}

bool shared_exists(void)
{
	return exists;
}
