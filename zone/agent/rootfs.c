#include "rootfs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "container.h"
#include "file.h"
#include "owners.h"
#include "podns.h"

/* How the image's owners become the pod's. */
enum ids { IDS_SAME, IDS_MAPPED, IDS_CHANGED };

struct paths {
	char top[PATH_SIZE + 16]; /* the stack's topmost */
	char writable[PATH_SIZE + 16];
	char upper[PATH_SIZE + 32];
	char work[PATH_SIZE + 32];
	char merged[PATH_SIZE + 16];
};

static int name_paths(struct paths *paths, const char *directory, size_t count)
{
	return stack_place(paths->top, sizeof(paths->top), directory, count - 1) |
	       path_set(paths->writable, sizeof(paths->writable), "%s/writable", directory) |
	       path_set(paths->upper, sizeof(paths->upper), "%s/upper", paths->writable) |
	       path_set(paths->work, sizeof(paths->work), "%s/work", paths->writable) |
	       path_set(paths->merged, sizeof(paths->merged), "%s/rootfs", directory);
}

static int make_directories(const char *const *paths, size_t count, struct fault *fault)
{
	for (size_t i = 0; i < count; i++)
		if (mkdir(paths[i], 0755) < 0)
			return fault_errno(fault, "mkdir", paths[i]);
	return 0;
}

/* The overlay's own root looks like the upper layer's: make that look like the image's. */
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

static int make_upper(const struct paths *paths, struct fault *fault)
{
	const char *const layers[] = { paths->upper, paths->work };

	if (make_directories((const char *const[]){ paths->writable }, 1, fault) < 0)
		return -1;
	if (mount("tmpfs", paths->writable, "tmpfs", 0, "mode=0700") < 0)
		return fault_errno(fault, "mount tmpfs", paths->writable);
	if (make_directories(layers, 2, fault) < 0)
		return -1;
	return copy_root_attributes(paths, fault);
}

/* metacopy: a file whose owner is changed does not come into memory as a whole. */
static int mount_overlay(const char *directory, const struct paths *paths, size_t count, enum ids ids,
			 bool writable, struct fault *fault)
{
	char options[OPTIONS_SIZE];
	int used = stack_option(options, sizeof(options), directory, count);

	if (used < 0 ||
	    (writable &&
	     path_set(options + used, sizeof(options) - (size_t)used, ",upperdir=%s,workdir=%s%s", paths->upper,
		      paths->work, ids == IDS_CHANGED ? ",metacopy=on,redirect_dir=on" : "") < 0))
		return fault_errno(fault, "mount", paths->merged);
	if (make_directories((const char *const[]){ paths->merged }, 1, fault) < 0 ||
	    (writable && make_upper(paths, fault) < 0))
		return -1;
	if (mount("overlay", paths->merged, "overlay", writable ? 0 : MS_RDONLY | MS_NODEV, options) < 0)
		return fault_errno(fault, "mount overlay", paths->merged);
	return 0;
}

static int mount_layers(const char *directory, const struct paths *paths, const struct stack *stack, enum ids ids,
			enum use use, struct fault *fault)
{
	bool writable = use == WRITABLE || ids == IDS_CHANGED;

	if (stack_mount(directory, stack, ids == IDS_MAPPED, use == READ_ONLY ? MS_NODEV : 0, fault) < 0)
		return -1;
	if (!writable && stack->count == 1)
		return 0;
	return mount_overlay(directory, paths, stack->count, ids, writable, fault);
}

static int mount_or_undo(const char *directory, const struct paths *paths, const struct stack *stack, enum ids ids,
			 enum use use, struct fault *fault)
{
	struct fault ignored;

	if (mount_layers(directory, paths, stack, ids, use, fault) == 0)
		return 0;
	rootfs_unmount(directory, &ignored);
	return -1;
}

/* Found out by trying: what a kernel can depends on more than its version.  XENPOD_IDS=change: not even tried. */
static bool may_be_mapped(void)
{
	const char *ids = getenv("XENPOD_IDS");

	return !ids || strcmp(ids, "change") != 0;
}

int rootfs_mount(const char *directory, const struct stack *stack, enum use use, bool *to_change,
		 struct fault *fault)
{
	struct paths paths;

	*to_change = false;
	if (name_paths(&paths, directory, stack->count) < 0)
		return fault_errno(fault, "mount", directory);
	if (!podns_is())
		return mount_or_undo(directory, &paths, stack, IDS_SAME, use, fault);
	if (may_be_mapped() && mount_or_undo(directory, &paths, stack, IDS_MAPPED, use, fault) == 0)
		return 0;
	*to_change = true;
	return mount_or_undo(directory, &paths, stack, IDS_CHANGED, use, fault);
}

int rootfs_seen(char *path, size_t size, const char *directory, const struct stack *stack, bool to_change)
{
	if (stack->count == 1 && !to_change)
		return stack_place(path, size, directory, 0);
	return path_set(path, size, "%s/rootfs", directory);
}

int rootfs_change_owners(const char *directory, struct fault *fault)
{
	struct paths paths;

	if (name_paths(&paths, directory, 1) < 0)
		return fault_errno(fault, "change owners", directory);
	return owners_change(paths.merged, fault);
}

int rootfs_unmount(const char *directory, struct fault *fault)
{
	struct paths paths;
	int result;

	if (name_paths(&paths, directory, 1) < 0)
		return fault_errno(fault, "umount2", directory);
	result = mount_point_drop(paths.merged, fault);
	if (mount_point_drop(paths.writable, fault) < 0)
		result = -1;
	return stack_unmount(directory, fault) < 0 ? -1 : result;
}

int rootfs_usage(const char *directory, struct disk_usage *usage)
{
	struct statvfs writable;
	struct paths paths;

	if (name_paths(&paths, directory, 1) < 0 || statvfs(paths.writable, &writable) < 0)
		return -1;
	usage->bytes = (uint64_t)(writable.f_blocks - writable.f_bfree) * writable.f_frsize;
	usage->inodes = writable.f_files - writable.f_ffree;
	usage->bytes_limit = (uint64_t)writable.f_blocks * writable.f_frsize;
	usage->inodes_limit = writable.f_files;
	return 0;
}
