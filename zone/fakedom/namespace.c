#include "namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

static int clone_root(const char *shared, struct reason *reason)
{
	struct mount_attr slave = { .propagation = MS_SLAVE };
	int fd = open_tree(AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);

	if (fd < 0)
		return reason_errno(reason, "open_tree", shared);
	if (mount_setattr(fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &slave, sizeof(slave)) < 0)
		return reason_errno(reason, "mount_setattr", shared);
	return fd;
}

static int enter(int namespace, const char *name, struct reason *reason)
{
	return setns(namespace, CLONE_NEWNS) < 0 ? reason_errno(reason, "setns", name) : 0;
}

int namespace_mounts(const char *shared, int *tree, struct reason *reason)
{
	int ours = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	int theirs = open(shared, O_RDONLY | O_CLOEXEC);

	if (ours < 0 || theirs < 0)
		return reason_errno(reason, "open", shared);
	if (enter(theirs, shared, reason) < 0)
		return -1;
	*tree = clone_root(shared, reason);
	if (*tree < 0 || enter(ours, "our own mounts", reason) < 0)
		return -1;
	close(ours);
	close(theirs);
	return 0;
}
