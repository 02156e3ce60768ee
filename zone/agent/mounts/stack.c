#include "mounts/stack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/name.h"
#include "sys/pod_userns.h"

static bool type_valid(const char *untrusted)
{
	return strcmp(untrusted, "squashfs") == 0 || strcmp(untrusted, "erofs") == 0;
}

/* Checked here, because the kernel reports a disk that is used twice as ELOOP. */
static bool used_before(const struct stack *untrusted, size_t number)
{
	for (size_t i = 0; i < number; i++)
		if (strcmp(untrusted->lowest[i]->disk, untrusted->lowest[number]->disk) == 0)
			return true;
	return false;
}

int stack_check(const struct stack *untrusted, const char *owner, struct fault *fault)
{
	const char *wrong = NULL;

	if (!untrusted->count || untrusted->count > STACK_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "create container: %s: %zu file systems, not 1 to %d", owner,
				 untrusted->count, STACK_MAX);
	for (size_t i = 0; i < untrusted->count && !wrong; i++) {
		if (!device_name_valid(untrusted->lowest[i]->disk))
			wrong = "not a disk's name";
		else if (!type_valid(untrusted->lowest[i]->type))
			wrong = "its file system is neither squashfs nor erofs";
		else if (used_before(untrusted, i))
			wrong = "a disk is in its stack twice";
	}
	return wrong ? fault_set(fault, INVALID_ARGUMENT, "create container: %s: %s", owner, wrong) : 0;
}

int stack_layer_path(char *path, size_t size, const char *directory, size_t number)
{
	return path_format(path, size, "%s/lower%zu", directory, number);
}

/* Makes the kernel show the disk's owners as the pod's.  No owner is changed on disk. */
static int map_owners(const char *path)
{
	struct mount_attr attributes = {
		.attr_set = MOUNT_ATTR_IDMAP,
		.userns_fd = (uint64_t)pod_userns_fd(),
	};
	int tree = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	int result, error;

	if (tree < 0)
		return -1;
	result = mount_setattr(tree, "", AT_EMPTY_PATH, &attributes, sizeof(attributes));
	if (result == 0)
		result = umount2(path, UMOUNT_NOFOLLOW);
	if (result == 0)
		result = move_mount(tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
	error = errno;
	close(tree);
	errno = error;
	return result;
}

static int mount_one(const char *directory, size_t number, const Filesystem *filesystem, bool mapped,
		     unsigned long flags, struct fault *fault)
{
	char device[32], path[PATH_SIZE + 16];

	if (path_format(device, sizeof(device), "/dev/%s", filesystem->disk) < 0 ||
	    stack_layer_path(path, sizeof(path), directory, number) < 0)
		return fault_errno(fault, "mount", filesystem->disk);
	if (mkdir(path, 0755) < 0)
		return fault_errno(fault, "mkdir", path);
	if (mount(device, path, filesystem->type, MS_RDONLY | flags, NULL) < 0)
		return fault_errno(fault, "mount", device);
	if (mapped && map_owners(path) < 0)
		return fault_errno(fault, "map ids", device);
	return 0;
}

int stack_mount(const char *directory, const struct stack *stack, bool mapped, unsigned long flags,
		struct fault *fault)
{
	for (size_t i = 0; i < stack->count; i++)
		if (mount_one(directory, i, stack->lowest[i], mapped, flags, fault) < 0)
			return -1;
	return 0;
}

int stack_lowerdir(char *options, size_t size, const char *directory, size_t count)
{
	size_t used = 0;

	for (size_t i = count; i > 0; i--) {
		const char *before = i == count ? "lowerdir=" : ":";

		if (path_format(options + used, size - used, "%s%s/lower%zu", before, directory, i - 1) < 0)
			return -1;
		used += strlen(options + used);
	}
	return (int)used;
}

int mount_point_remove(const char *path, struct fault *fault)
{
	int result = 0;

	if (umount2(path, UMOUNT_NOFOLLOW | MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT)
		result = fault_errno(fault, "umount2", path);
	if (rmdir(path) < 0 && errno != ENOENT)
		result = fault_errno(fault, "rmdir", path);
	return result;
}

int stack_unmount(const char *directory, struct fault *fault)
{
	char path[PATH_SIZE + 16];
	int result = 0;

	for (size_t i = STACK_MAX; i > 0; i--) {
		if (stack_layer_path(path, sizeof(path), directory, i - 1) < 0)
			return fault_errno(fault, "umount2", directory);
		if (mount_point_remove(path, fault) < 0)
			result = -1;
	}
	return result;
}
