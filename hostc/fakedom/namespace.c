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

int namespace_enter(const char *shared, int *tree, struct reason *reason)
{
	int theirs = open(shared, O_RDONLY | O_CLOEXEC);

	if (theirs < 0)
		return reason_errno(reason, "open", shared);
	if (setns(theirs, CLONE_NEWNS) < 0)
		return reason_errno(reason, "setns", shared);
	close(theirs);
	*tree = clone_root(shared, reason);
	return *tree < 0 ? -1 : 0;
}
