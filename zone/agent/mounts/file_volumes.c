#include "mounts/file_volumes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mounts/file_tree.h"
#include "mounts/image_volumes.h"
#include "sys/file.h"
#include "sys/name.h"

#define FILES_DIRECTORY "/run/xenpod/files"
#define SHARED_DIRECTORY "/run/xenpod/shared"
/* an invalid container id */
#define OF_ZONE "_zone"

static int volume_path(char *path, size_t size, const char *owner, const char *volume, struct fault *fault)
{
	if ((owner[0] && !id_valid(owner)) || !file_name_valid(volume))
		return fault_set(fault, INVALID_ARGUMENT, "file volume: no owner or no plain name");
	if (path_format(path, size, FILES_DIRECTORY "/%s/%s", owner[0] ? owner : OF_ZONE, volume) < 0)
		return fault_errno(fault, "file volume", volume);
	return 0;
}

int file_volumes_check(const CreateContainer *untrusted, struct fault *fault)
{
	char path[PATH_SIZE];

	if (untrusted->n_file_volumes > FILE_VOLUMES_MAX || untrusted->n_shared_volumes > FILE_VOLUMES_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "create container: %s: more than %d file volumes",
				 untrusted->id, FILE_VOLUMES_MAX);
	for (size_t i = 0; i < untrusted->n_file_volumes; i++) {
		const FileVolume *volume = untrusted->file_volumes[i];

		if (!file_name_valid(volume->name))
			return fault_set(fault, INVALID_ARGUMENT, "create container: %s: file volume %zu: no plain name",
					 untrusted->id, i);
		if (volume_path(path, sizeof(path), volume->owner, volume->volume, fault) < 0)
			return -1;
	}
	for (size_t i = 0; i < untrusted->n_shared_volumes; i++)
		if (!file_name_valid(untrusted->shared_volumes[i]))
			return fault_set(fault, INVALID_ARGUMENT,
					 "create container: %s: shared volume %zu: no plain name", untrusted->id, i);
	return 0;
}

static int bind(const char *source, const char *directory, const char *name, struct fault *fault)
{
	int part = open(source, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	int result;

	if (part < 0)
		return fault_errno(fault, "open file volume", source);
	result = volume_bind(part, directory, name, 0, fault);
	close(part);
	return result;
}

int file_volumes_mount(const char *directory, const CreateContainer *request, struct fault *fault)
{
	char path[PATH_SIZE], root[PATH_SIZE + 8];

	for (size_t i = 0; i < request->n_file_volumes; i++) {
		const FileVolume *volume = request->file_volumes[i];

		if (volume_path(path, sizeof(path), volume->owner, volume->volume, fault) < 0)
			return -1;
		snprintf(root, sizeof(root), "%s/root", path);
		if (bind(root, directory, volume->name, fault) < 0)
			return -1;
	}
	for (size_t i = 0; i < request->n_shared_volumes; i++) {
		const char *name = request->shared_volumes[i];

		if (path_format(path, sizeof(path), SHARED_DIRECTORY "/%s/%s", request->id, name) < 0)
			return fault_errno(fault, "shared volume", name);
		if (bind(path, directory, name, fault) < 0)
			return -1;
	}
	return 0;
}

static int make_directory(const char *path, struct fault *fault)
{
	return mkdir(path, 0700) < 0 && errno != EEXIST ? fault_errno(fault, "mkdir", path) : 0;
}

static int ensure_mounted(const char *path, const PutFiles *request, struct fault *fault)
{
	char owner[PATH_SIZE], options[128];

	snprintf(owner, sizeof(owner), "%s", path);
	*strrchr(owner, '/') = '\0';
	if (make_directory(FILES_DIRECTORY, fault) < 0 || make_directory(owner, fault) < 0)
		return -1;
	if (mkdir(path, 0700) < 0)
		return errno == EEXIST ? 0 : fault_errno(fault, "mkdir", path);
	snprintf(options, sizeof(options), "mode=700,size=%llu,nr_inodes=8192",
		 (unsigned long long)request->size_bytes);
	if (mount("tmpfs", path, "tmpfs", 0, options) == 0)
		return 0;
	fault_errno(fault, "mount tmpfs", path);
	rmdir(path);
	return -1;
}

static int check_put(const PutFiles *untrusted, struct fault *fault)
{
	if (!id_valid(untrusted->version) || !untrusted->size_bytes)
		return fault_set(fault, INVALID_ARGUMENT, "put files: %s: no version or no size", untrusted->volume);
	for (size_t i = 0; i < untrusted->n_entries; i++)
		if (untrusted->entries[i]->mode & ~07777u)
			return fault_set(fault, INVALID_ARGUMENT, "put files: %s: entry %zu: its mode is none",
					 untrusted->volume, i);
	return 0;
}

static int begin(const char *path, const PutFiles *request, struct fault *fault)
{
	char file[PATH_SIZE + 8], version[ID_MAX + 2];

	if (ensure_mounted(path, request, fault) < 0)
		return -1;
	snprintf(file, sizeof(file), "%s/version", path);
	if (file_read(file, version, sizeof(version)) >= 0 && strcmp(version, request->version) == 0)
		return fault_set(fault, ALREADY_EXISTS, "put files: %s: it has this version", request->volume);
	snprintf(file, sizeof(file), "%s/next", path);
	if (unlink(file) < 0 && errno != ENOENT)
		return fault_errno(fault, "unlink", file);
	return 0;
}

static int finish(const char *path, int top, const PutFiles *request, struct fault *fault)
{
	char file[PATH_SIZE + 8];

	if (file_tree_prune(top, request, fault) < 0)
		return -1;
	snprintf(file, sizeof(file), "%s/version", path);
	if (file_write(file, request->version, strlen(request->version), 0600) < 0)
		return fault_errno(fault, "write", file);
	return 0;
}

int file_volume_put(const PutFiles *untrusted, struct fault *fault)
{
	char path[PATH_SIZE];
	int top, result = 0;

	if (volume_path(path, sizeof(path), untrusted->owner, untrusted->volume, fault) < 0 ||
	    check_put(untrusted, fault) < 0)
		return -1;
	if (untrusted->first && begin(path, untrusted, fault) < 0)
		return -1;
	top = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (top < 0)
		return fault_errno(fault, "put files", path);
	for (size_t i = 0; i < untrusted->n_entries && !result; i++)
		result = file_tree_put(top, untrusted, untrusted->entries[i], fault);
	if (!result && untrusted->last)
		result = finish(path, top, untrusted, fault);
	close(top);
	return result;
}

int file_volume_read(const ReadFile *untrusted, void *content, size_t *length, struct fault *fault)
{
	char path[PATH_SIZE], root[PATH_SIZE + 8];
	struct stat seen;
	ssize_t n = -1;
	int fd;

	if (volume_path(path, sizeof(path), untrusted->owner, untrusted->volume, fault) < 0)
		return -1;
	if (!untrusted->most || untrusted->most > FILE_READ_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "read file: %s: %u bytes", untrusted->volume, untrusted->most);
	snprintf(root, sizeof(root), "%s/root", path);
	/* A container may have changed the file, but could not replace it: the file is mounted. */
	fd = open(root, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return fault_set(fault, NOT_FOUND, "read file: %s: there is none", untrusted->volume);
	if (fd < 0)
		return fault_errno(fault, "read file", untrusted->volume);
	if (fstat(fd, &seen) < 0 || !S_ISREG(seen.st_mode)) {
		fault_set(fault, FAILED_PRECONDITION, "read file: %s: it is no file", untrusted->volume);
	} else {
		off_t from = seen.st_size > (off_t)untrusted->most ? seen.st_size - (off_t)untrusted->most : 0;

		n = pread(fd, content, untrusted->most, from);
		if (n < 0)
			fault_errno(fault, "read file", untrusted->volume);
	}
	close(fd);
	*length = n > 0 ? (size_t)n : 0;
	return n < 0 ? -1 : 0;
}

int file_volumes_forget(const char *container, struct fault *fault)
{
	char all[PATH_SIZE], one[PATH_SIZE * 2];
	struct dirent *entry;
	DIR *entries;
	int result = 0;

	if (path_format(all, sizeof(all), FILES_DIRECTORY "/%s", container) < 0)
		return fault_errno(fault, "forget files", container);
	entries = opendir(all);
	if (!entries)
		return errno == ENOENT ? 0 : fault_errno(fault, "opendir", all);
	while ((entry = readdir(entries))) {
		if (!file_name_valid(entry->d_name))
			continue;
		snprintf(one, sizeof(one), "%s/%.64s", all, entry->d_name);
		if ((umount2(one, UMOUNT_NOFOLLOW | MNT_DETACH) < 0 && errno != EINVAL) || rmdir(one) < 0)
			result = fault_errno(fault, "remove files", one);
	}
	closedir(entries);
	if (!result && rmdir(all) < 0)
		result = fault_errno(fault, "rmdir", all);
	return result;
}
