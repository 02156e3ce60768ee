#include "mounts/image_volumes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mounts/rootfs.h"
#include "sys/file.h"
#include "sys/name.h"

static struct stack stack_of(const ImageVolume *volume)
{
	return (struct stack){ .lowest = volume->filesystems, .count = volume->n_filesystems };
}

static int check_one(const ImageVolume *untrusted, const char *id, size_t number, struct fault *fault)
{
	struct stack stack = stack_of(untrusted);
	const char *wrong = NULL;
	char what[ID_MAX + 40];

	if (!file_name_valid(untrusted->name))
		wrong = "no plain name";
	else if (strlen(untrusted->sub_path) >= 4096)
		wrong = "its sub path is too long";
	if (wrong)
		return fault_set(fault, INVALID_ARGUMENT, "create container: %s: volume %zu: %s", id, number, wrong);
	if (path_format(what, sizeof(what), "%s: volume %zu", id, number) < 0)
		return fault_errno(fault, "create container", id);
	return stack_check(&stack, what, fault);
}

int image_volumes_check(const CreateContainer *untrusted, struct fault *fault)
{
	if (untrusted->n_image_volumes > IMAGE_VOLUMES_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "create container: %s: more than %d volumes",
				 untrusted->id, IMAGE_VOLUMES_MAX);
	for (size_t i = 0; i < untrusted->n_image_volumes; i++)
		if (check_one(untrusted->image_volumes[i], untrusted->id, i, fault) < 0)
			return -1;
	return 0;
}

static int sub_path_fault(const char *sub_path, struct fault *fault)
{
	char shown[256];

	path_format(shown, sizeof(shown), "%.200s", sub_path);
	switch (errno) {
	case ENOENT:
	case ENOTDIR:
	case ENAMETOOLONG:
		return fault_set(fault, FAILED_PRECONDITION,
				 "mount image volume: sub path %s: the image has no such path", shown);
	case ELOOP:
		return fault_set(fault, FAILED_PRECONDITION, "mount image volume: sub path %s: too many symbolic links",
				 shown);
	default:
		return fault_errno(fault, "open sub path", shown);
	}
}

/* Opens the sub path.  Symbolic links are followed as if the image were the whole file system.  -1 with the fault. */
static int open_part(const char *image, const char *sub_path, struct fault *fault)
{
	int fd = path_open_in_root(image, sub_path[0] ? sub_path : ".");
	struct stat part;

	if (fd < 0)
		return sub_path_fault(sub_path, fault);
	if (fstat(fd, &part) < 0) {
		fault_errno(fault, "stat", "image volume");
	} else if (!S_ISDIR(part.st_mode) && !S_ISREG(part.st_mode)) {
		fault_set(fault, FAILED_PRECONDITION,
			  "mount image volume: sub path %.200s: neither a directory nor a file", sub_path);
	} else {
		return fd;
	}
	close(fd);
	return -1;
}

static int make_directory(const char *path, struct fault *fault)
{
	return mkdir(path, 0755) < 0 && errno != EEXIST ? fault_errno(fault, "mkdir", path) : 0;
}

int volume_mount_point(char *path, size_t size, const char *directory, const char *name, bool is_directory,
		       struct fault *fault)
{
	char volumes[PATH_SIZE];

	if (path_format(volumes, sizeof(volumes), "%s/volumes", directory) < 0 ||
	    path_format(path, size, "%s/volumes/%s", directory, name) < 0)
		return fault_errno(fault, "mount volume", name);
	if (make_directory(volumes, fault) < 0)
		return -1;
	if ((is_directory ? mkdir(path, 0755) : file_write(path, "", 0, 0444)) < 0)
		return fault_errno(fault, "make mount point", path);
	return 0;
}

int volume_bind(int part, const char *directory, const char *name, uint64_t attributes, struct fault *fault)
{
	struct mount_attr attr = { .attr_set = attributes };
	char path[PATH_SIZE];
	struct stat kind;
	int tree, result = -1;

	if (fstat(part, &kind) < 0)
		return fault_errno(fault, "stat", name);
	if (volume_mount_point(path, sizeof(path), directory, name, S_ISDIR(kind.st_mode), fault) < 0)
		return -1;
	tree = open_tree(part, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
	if (tree < 0)
		return fault_errno(fault, "open_tree", path);
	if ((attributes && mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0) ||
		 move_mount(tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		fault_errno(fault, "mount volume", path);
	else
		result = 0;
	close(tree);
	return result;
}

static int image_path(char *path, size_t size, const char *directory, const char *name, struct fault *fault)
{
	if (path_format(path, size, "%s/images/%s", directory, name) < 0)
		return fault_errno(fault, "mount image volume", name);
	return 0;
}

int image_volume_mount(const char *directory, const ImageVolume *volume, bool *needs_chown, struct fault *fault)
{
	char images[PATH_SIZE], image[PATH_SIZE], tree[PATH_SIZE];
	struct stack stack = stack_of(volume);
	int part, result;

	if (path_format(images, sizeof(images), "%s/images", directory) < 0)
		return fault_errno(fault, "mount image volume", volume->name);
	if (image_path(image, sizeof(image), directory, volume->name, fault) < 0 ||
	    make_directory(images, fault) < 0)
		return -1;
	if (mkdir(image, 0755) < 0)
		return fault_errno(fault, "mkdir", image);
	if (rootfs_mount(image, &stack, READ_ONLY, needs_chown, fault) < 0)
		return -1;
	if (rootfs_read_only_path(tree, sizeof(tree), image, &stack, *needs_chown) < 0)
		return fault_errno(fault, "mount image volume", volume->name);
	part = open_part(tree, volume->sub_path, fault);
	if (part < 0)
		return -1;
	result = volume_bind(part, directory, volume->name, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV, fault);
	close(part);
	return result;
}

int image_volume_change_owners(const char *directory, const ImageVolume *volume, struct fault *fault)
{
	char image[PATH_SIZE];

	if (image_path(image, sizeof(image), directory, volume->name, fault) < 0)
		return -1;
	return rootfs_change_owners(image, fault);
}

static int unbind(const char *path, struct fault *fault)
{
	if (umount2(path, UMOUNT_NOFOLLOW | MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT)
		return fault_errno(fault, "umount2", path);
	if (rmdir(path) < 0 && (errno != ENOTDIR || unlink(path) < 0) && errno != ENOENT)
		return fault_errno(fault, "remove", path);
	return 0;
}

static int remove_image(const char *image, struct fault *fault)
{
	if (rootfs_unmount(image, fault) < 0)
		return -1;
	if (rmdir(image) < 0 && errno != ENOENT)
		return fault_errno(fault, "rmdir", image);
	return 0;
}

/* Calls `remove_one` for each entry of a directory, then removes the directory. */
static int remove_each(const char *directory, const char *kind, int (*remove_one)(const char *, struct fault *),
		    struct fault *fault)
{
	char all[PATH_SIZE], one[PATH_SIZE];
	struct dirent *entry;
	DIR *entries;
	int result = 0;

	if (path_format(all, sizeof(all), "%s/%s", directory, kind) < 0)
		return fault_errno(fault, "remove", kind);
	entries = opendir(all);
	if (!entries)
		return errno == ENOENT ? 0 : fault_errno(fault, "opendir", all);
	while ((entry = readdir(entries))) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (path_format(one, sizeof(one), "%s/%.64s", all, entry->d_name) < 0)
			result = fault_errno(fault, "remove", kind);
		else if (remove_one(one, fault) < 0)
			result = -1;
	}
	closedir(entries);
	if (!result && rmdir(all) < 0)
		result = fault_errno(fault, "rmdir", all);
	return result;
}

int volumes_unmount(const char *directory, struct fault *fault)
{
	int shown = remove_each(directory, "volumes", unbind, fault);

	return remove_each(directory, "images", remove_image, fault) < 0 ? -1 : shown;
}
