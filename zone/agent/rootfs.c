#include "rootfs.h"

#include <errno.h>
#include <fcntl.h>
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
	char lower[PATH_SIZE + 16];
	char writable[PATH_SIZE + 16];
	char upper[PATH_SIZE + 32];
	char work[PATH_SIZE + 32];
	char merged[PATH_SIZE + 16];
};

bool rootfs_type_valid(const char *untrusted)
{
	return strcmp(untrusted, "squashfs") == 0 || strcmp(untrusted, "erofs") == 0;
}

static int name_paths(struct paths *paths, const char *directory)
{
	return path_set(paths->lower, sizeof(paths->lower), "%s/lower", directory) |
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

	if (stat(paths->lower, &root) < 0)
		return fault_errno(fault, "stat", paths->lower);
	if (chown(paths->upper, root.st_uid, root.st_gid) < 0)
		return fault_errno(fault, "chown", paths->upper);
	if (chmod(paths->upper, root.st_mode & 07777) < 0)
		return fault_errno(fault, "chmod", paths->upper);
	return 0;
}

/* The kernel shows the disk's owners as the pod's: none is changed.  Not every kernel and file system can. */
static int map_lower(const char *lower)
{
	struct mount_attr attributes = {
		.attr_set = MOUNT_ATTR_IDMAP,
		.userns_fd = (uint64_t)podns_user(),
	};
	int tree = open_tree(AT_FDCWD, lower, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	int result, error;

	if (tree < 0)
		return -1;
	result = mount_setattr(tree, "", AT_EMPTY_PATH, &attributes, sizeof(attributes));
	if (result == 0)
		result = umount2(lower, UMOUNT_NOFOLLOW);
	if (result == 0)
		result = move_mount(tree, "", AT_FDCWD, lower, MOVE_MOUNT_F_EMPTY_PATH);
	error = errno;
	close(tree);
	errno = error;
	return result;
}

static int mount_lower(const struct paths *paths, const char *disk, const char *type, enum ids ids,
		       unsigned long flags, struct fault *fault)
{
	char device[32];

	if (path_set(device, sizeof(device), "/dev/%s", disk) < 0)
		return fault_errno(fault, "mount", disk);
	if (make_directories((const char *const[]){ paths->lower }, 1, fault) < 0)
		return -1;
	if (mount(device, paths->lower, type, MS_RDONLY | flags, NULL) < 0)
		return fault_errno(fault, "mount", device);
	if (ids == IDS_MAPPED && map_lower(paths->lower) < 0)
		return fault_errno(fault, "map ids", device);
	return 0;
}

/* metacopy: a file whose owner is changed does not come into memory as a whole. */
static int mount_overlay(const struct paths *paths, enum ids ids, struct fault *fault)
{
	const char *const mount_points[] = { paths->writable, paths->merged };
	const char *const layers[] = { paths->upper, paths->work };
	char options[4 * PATH_SIZE];

	if (path_set(options, sizeof(options), "lowerdir=%s,upperdir=%s,workdir=%s%s", paths->lower,
		     paths->upper, paths->work, ids == IDS_CHANGED ? ",metacopy=on,redirect_dir=on" : "") < 0)
		return fault_errno(fault, "mount", paths->merged);
	if (make_directories(mount_points, 2, fault) < 0)
		return -1;
	if (mount("tmpfs", paths->writable, "tmpfs", 0, "mode=0700") < 0)
		return fault_errno(fault, "mount tmpfs", paths->writable);
	if (make_directories(layers, 2, fault) < 0 || copy_root_attributes(paths, fault) < 0)
		return -1;
	if (mount("overlay", paths->merged, "overlay", 0, options) < 0)
		return fault_errno(fault, "mount overlay", paths->merged);
	return 0;
}

static int mount_layers(const struct paths *paths, const char *disk, const char *type, enum ids ids,
			enum use use, struct fault *fault)
{
	if (mount_lower(paths, disk, type, ids, use == READ_ONLY ? MS_NODEV : 0, fault) < 0)
		return -1;
	return use == READ_ONLY && ids != IDS_CHANGED ? 0 : mount_overlay(paths, ids, fault);
}

static int mount_or_undo(const char *directory, const struct paths *paths, const char *disk, const char *type,
			 enum ids ids, enum use use, struct fault *fault)
{
	struct fault ignored;

	if (mount_layers(paths, disk, type, ids, use, fault) == 0)
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

int rootfs_mount(const char *directory, const char *disk, const char *type, enum use use, bool *to_change,
		 struct fault *fault)
{
	struct paths paths;

	*to_change = false;
	if (name_paths(&paths, directory) < 0)
		return fault_errno(fault, "mount", directory);
	if (!podns_is())
		return mount_or_undo(directory, &paths, disk, type, IDS_SAME, use, fault);
	if (may_be_mapped() && mount_or_undo(directory, &paths, disk, type, IDS_MAPPED, use, fault) == 0)
		return 0;
	*to_change = true;
	return mount_or_undo(directory, &paths, disk, type, IDS_CHANGED, use, fault);
}

int rootfs_change_owners(const char *directory, struct fault *fault)
{
	struct paths paths;

	if (name_paths(&paths, directory) < 0)
		return fault_errno(fault, "change owners", directory);
	return owners_change(paths.merged, fault);
}

int rootfs_unmount(const char *directory, struct fault *fault)
{
	struct paths paths;
	const char *mount_points[3];
	int result = 0;

	if (name_paths(&paths, directory) < 0)
		return fault_errno(fault, "umount2", directory);
	mount_points[0] = paths.merged;
	mount_points[1] = paths.writable;
	mount_points[2] = paths.lower;
	for (int i = 0; i < 3; i++) {
		if (umount2(mount_points[i], UMOUNT_NOFOLLOW | MNT_DETACH) < 0 && errno != EINVAL &&
		    errno != ENOENT)
			result = fault_errno(fault, "umount2", mount_points[i]);
		if (rmdir(mount_points[i]) < 0 && errno != ENOENT)
			result = fault_errno(fault, "rmdir", mount_points[i]);
	}
	return result;
}

int rootfs_usage(const char *directory, struct disk_usage *usage)
{
	struct statvfs writable;
	struct paths paths;

	if (name_paths(&paths, directory) < 0 || statvfs(paths.writable, &writable) < 0)
		return -1;
	usage->bytes = (uint64_t)(writable.f_blocks - writable.f_bfree) * writable.f_frsize;
	usage->inodes = writable.f_files - writable.f_ffree;
	usage->bytes_limit = (uint64_t)writable.f_blocks * writable.f_frsize;
	usage->inodes_limit = writable.f_files;
	return 0;
}
