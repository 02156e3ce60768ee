#include "mounts/rootfs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "mounts/owners.h"
#include "mounts/scratch.h"
#include "sys/file.h"
#include "sys/pod_userns.h"

/* How the image's owners become the pod's: not at all, by a mapped mount, or by a change of each file. */
enum ids { IDS_SAME, IDS_MAPPED, IDS_CHANGED };

struct paths {
	char top[PATH_SIZE + 16]; /* the stack's topmost layer */
	char writable[PATH_SIZE + 16];
	char upper[PATH_SIZE + 32];
	char work[PATH_SIZE + 32];
	char merged[PATH_SIZE + 16];
};

static int name_paths(struct paths *paths, const char *directory, size_t count)
{
	return stack_layer_path(paths->top, sizeof(paths->top), directory, count - 1) |
	       path_format(paths->writable, sizeof(paths->writable), "%s/writable", directory) |
	       path_format(paths->upper, sizeof(paths->upper), "%s/upper", paths->writable) |
	       path_format(paths->work, sizeof(paths->work), "%s/work", paths->writable) |
	       path_format(paths->merged, sizeof(paths->merged), "%s/rootfs", directory);
}

static int make_directories(const char *const *paths, size_t count, struct fault *fault)
{
	for (size_t i = 0; i < count; i++)
		if (mkdir(paths[i], 0755) < 0)
			return fault_errno(fault, "mkdir", paths[i]);
	return 0;
}

/* The overlay's root has the attributes of the upper layer's root: copy the image's attributes there. */
static int copy_root_attributes(const struct paths *paths, struct fault *fault)
{
	struct stat root;

	if (stat(paths->top, &root) < 0)
		return fault_errno(fault, "stat", paths->top);
	if (chown(paths->upper, root.st_uid, root.st_gid) < 0)
		return fault_errno(fault, "chown", paths->upper);
	if (chmod(paths->upper, root.st_mode & 07777) < 0)
		return fault_errno(fault, "chmod", paths->upper);
	return 0;
}

static int mount_writable(const struct paths *paths, const struct stack *stack, struct fault *fault)
{
	char options[64] = "mode=0700";

	if (stack->scratch && *scratch_disk())
		return scratch_mount(SCRATCH_LAYER, stack->scratch, stack->writable_bytes, paths->writable, fault);
	if (stack->writable_bytes)
		snprintf(options, sizeof(options), "mode=0700,size=%llu", (unsigned long long)stack->writable_bytes);
	if (mount("tmpfs", paths->writable, "tmpfs", 0, options) < 0)
		return fault_errno(fault, "mount tmpfs", paths->writable);
	return 0;
}

static int make_upper(const struct paths *paths, const struct stack *stack, struct fault *fault)
{
	const char *const layers[] = { paths->upper, paths->work };

	if (make_directories((const char *const[]){ paths->writable }, 1, fault) < 0 ||
	    mount_writable(paths, stack, fault) < 0)
		return -1;
	if (make_directories(layers, 2, fault) < 0)
		return -1;
	return copy_root_attributes(paths, fault);
}

/* metacopy: a change of owner copies only a file's metadata into memory, not its contents. */
static int mount_overlay(const char *directory, const struct paths *paths, const struct stack *stack, enum ids ids,
			 bool writable, struct fault *fault)
{
	char options[OPTIONS_SIZE];
	int used = stack_lowerdir(options, sizeof(options), directory, stack->count);

	if (used < 0 ||
	    (writable &&
	     path_format(options + used, sizeof(options) - (size_t)used, ",upperdir=%s,workdir=%s%s", paths->upper,
		      paths->work, ids == IDS_CHANGED ? ",metacopy=on,redirect_dir=on" : "") < 0))
		return fault_errno(fault, "mount", paths->merged);
	if (make_directories((const char *const[]){ paths->merged }, 1, fault) < 0 ||
	    (writable && make_upper(paths, stack, fault) < 0))
		return -1;
	if (mount("overlay", paths->merged, "overlay", writable ? 0 : MS_RDONLY | MS_NODEV, options) < 0)
		return fault_errno(fault, "mount overlay", paths->merged);
	return 0;
}

static int mount_layers(const char *directory, const struct paths *paths, const struct stack *stack, enum ids ids,
			enum access access, struct fault *fault)
{
	bool writable = access == WRITABLE || ids == IDS_CHANGED;

	if (stack_mount(directory, stack, ids == IDS_MAPPED, access == READ_ONLY ? MS_NODEV : 0, fault) < 0)
		return -1;
	if (!writable && stack->count == 1)
		return 0;
	return mount_overlay(directory, paths, stack, ids, writable, fault);
}

static int mount_or_undo(const char *directory, const struct paths *paths, const struct stack *stack, enum ids ids,
			 enum access access, struct fault *fault)
{
	struct fault ignored;

	if (mount_layers(directory, paths, stack, ids, access, fault) == 0)
		return 0;
	rootfs_unmount(directory, &ignored);
	return -1;
}

/* Whether to try a mapped mount: support depends on more than the kernel's version.  XENPOD_IDS=change: never. */
static bool try_mapped(void)
{
	const char *ids = getenv("XENPOD_IDS");

	return !ids || strcmp(ids, "change") != 0;
}

int rootfs_mount(const char *directory, const struct stack *stack, enum access access, bool *needs_chown,
		 struct fault *fault)
{
	struct paths paths;

	*needs_chown = false;
	if (name_paths(&paths, directory, stack->count) < 0)
		return fault_errno(fault, "mount", directory);
	if (!pod_userns_exists())
		return mount_or_undo(directory, &paths, stack, IDS_SAME, access, fault);
	if (try_mapped() && mount_or_undo(directory, &paths, stack, IDS_MAPPED, access, fault) == 0)
		return 0;
	*needs_chown = true;
	return mount_or_undo(directory, &paths, stack, IDS_CHANGED, access, fault);
}

int rootfs_read_only_path(char *path, size_t size, const char *directory, const struct stack *stack, bool needs_chown)
{
	if (stack->count == 1 && !needs_chown)
		return stack_layer_path(path, size, directory, 0);
	return path_format(path, size, "%s/rootfs", directory);
}

int rootfs_change_owners(const char *directory, struct fault *fault)
{
	struct paths paths;

	if (name_paths(&paths, directory, 1) < 0)
		return fault_errno(fault, "change owners", directory);
	return owners_change(paths.merged, fault);
}

int rootfs_open(const char *directory, const char *path)
{
	struct paths paths;

	return name_paths(&paths, directory, 1) < 0 ? -1 : path_open_in_root(paths.merged, path);
}

int rootfs_unmount(const char *directory, struct fault *fault)
{
	struct paths paths;
	int result;

	if (name_paths(&paths, directory, 1) < 0)
		return fault_errno(fault, "umount2", directory);
	result = mount_point_remove(paths.merged, fault);
	if (mount_point_remove(paths.writable, fault) < 0)
		result = -1;
	return stack_unmount(directory, fault) < 0 ? -1 : result;
}

int rootfs_usage(const char *directory, struct disk_usage *usage)
{
	struct statvfs writable;
	struct stat layer, disk;
	struct paths paths;

	if (name_paths(&paths, directory, 1) < 0 || statvfs(paths.writable, &writable) < 0)
		return -1;
	usage->bytes = (uint64_t)(writable.f_blocks - writable.f_bfree) * writable.f_frsize;
	usage->inodes = writable.f_files - writable.f_ffree;
	usage->bytes_limit = (uint64_t)writable.f_blocks * writable.f_frsize;
	usage->inodes_limit = writable.f_files;
	return *scratch_disk() && stat(paths.writable, &layer) == 0 && stat(SCRATCH_DIRECTORY, &disk) == 0 &&
	       layer.st_dev == disk.st_dev;
}
