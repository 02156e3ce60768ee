#include "container/trash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "container/job.h"
#include "mounts/scratch.h"
#include "sys/log.h"

static struct job job;
static bool running, again;

static bool is_self_or_above(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Immutable and append-only files could not be removed otherwise. */
static void unprotect(int fd)
{
	int flags;

	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && (flags & (FS_IMMUTABLE_FL | FS_APPEND_FL))) {
		flags &= ~(FS_IMMUTABLE_FL | FS_APPEND_FL);
		if (ioctl(fd, FS_IOC_SETFLAGS, &flags) < 0)
			log_errno("unprotect", "a file in the trash");
	}
}

static int remove_file(int directory, const char *name)
{
	int fd;

	if (unlinkat(directory, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EPERM)
		return -1;
	fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return -1;
	unprotect(fd);
	close(fd);
	return unlinkat(directory, name, 0);
}

/* A directory is moved to the trash itself: no depth is too deep, and its parent becomes empty. */
static int remove_entry(int directory, const char *name, int trash, unsigned long *moved)
{
	char place[32];

	if (remove_file(directory, name) == 0)
		return 0;
	if (errno != EISDIR)
		return -1;
	if (unlinkat(directory, name, AT_REMOVEDIR) == 0)
		return 0;
	if (errno != ENOTEMPTY && errno != EEXIST)
		return -1;
	do
		snprintf(place, sizeof(place), "d%lu", (*moved)++);
	while (faccessat(trash, place, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
	return renameat(directory, name, trash, place);
}

static int remove_entries(int fd, int trash, unsigned long *moved)
{
	DIR *entries = fdopendir(fd);
	struct dirent *entry;
	int result = 0;

	if (!entries) {
		close(fd);
		return -1;
	}
	unprotect(fd);
	while (!result && (errno = 0, entry = readdir(entries)))
		if (!is_self_or_above(entry->d_name))
			result = remove_entry(fd, entry->d_name, trash, moved);
	if (!result && errno)
		result = -1;
	closedir(entries);
	return result;
}

/* One round; 1: the trash was not empty. */
static int empty_once(int trash, unsigned long *moved)
{
	DIR *tops = fdopendir(openat(trash, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	struct dirent *top;
	int result = 0;

	if (!tops)
		return -1;
	while (result >= 0 && (errno = 0, top = readdir(tops))) {
		int fd;

		if (is_self_or_above(top->d_name))
			continue;
		result = 1;
		fd = openat(trash, top->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0 || remove_entries(fd, trash, moved) < 0 ||
		    unlinkat(trash, top->d_name, AT_REMOVEDIR) < 0)
			result = errno == ENOENT ? 1 : -1;
	}
	if (result >= 0 && errno)
		result = -1;
	closedir(tops);
	return result;
}

static int empty(void *data, struct fault *fault)
{
	int trash = open(SCRATCH_TRASH, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	unsigned long moved = 0;
	int result = 1;

	(void)data;
	while (trash >= 0 && result > 0)
		result = empty_once(trash, &moved);
	return trash < 0 || result < 0 ? fault_errno(fault, "empty the trash", SCRATCH_TRASH) : 0;
}

static void ended(struct job *done, const struct fault *fault)
{
	(void)done;
	running = false;
	/* The next deletion of a container tries the rest again. */
	if (fault)
		log_line("%s", fault->text);
	else if (again)
		trash_empty();
}

void trash_empty(void)
{
	struct fault fault;

	if (!*scratch_disk())
		return;
	again = running;
	if (running)
		return;
	job = (struct job){ .done = ended };
	running = job_fork(&job, "empty the trash", empty, NULL, &fault) == 0;
	if (!running)
		log_line("%s", fault.text);
}
