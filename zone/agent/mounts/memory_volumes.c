#include "mounts/memory_volumes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mounts/image_volumes.h"
#include "mounts/scratch.h"
#include "sys/file.h"
#include "sys/name.h"
#include "sys/pod_userns.h"

#define MEMORY_DIRECTORY "/run/xenpod/memory"

static int check_one(const MemoryVolume *untrusted, const char *id, size_t number, struct fault *fault)
{
	const char *wrong = NULL;

	if (!file_name_valid(untrusted->name) || !file_name_valid(untrusted->volume))
		wrong = "no plain name";
	else if (untrusted->mode & ~07777u)
		wrong = "its mode is none";
	else if (strlen(untrusted->sub_path) >= 4096)
		wrong = "its sub path is too long";
	if (wrong)
		return fault_set(fault, INVALID_ARGUMENT, "create container: %s: memory volume %zu: %s", id, number,
				 wrong);
	return 0;
}

int memory_volumes_check(const CreateContainer *untrusted, struct fault *fault)
{
	if (untrusted->n_memory_volumes > MEMORY_VOLUMES_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "create container: %s: more than %d memory volumes",
				 untrusted->id, MEMORY_VOLUMES_MAX);
	for (size_t i = 0; i < untrusted->n_memory_volumes; i++)
		if (check_one(untrusted->memory_volumes[i], untrusted->id, i, fault) < 0)
			return -1;
	return 0;
}

static int mount_tmpfs(const MemoryVolume *volume, const char *path, struct fault *fault)
{
	char options[64] = "";

	if (volume->size_bytes)
		snprintf(options, sizeof(options), "size=%llu", (unsigned long long)volume->size_bytes);
	if (mount("tmpfs", path, "tmpfs", 0, options) < 0)
		return fault_errno(fault, "mount tmpfs", path);
	return 0;
}

static int mount_volume(const MemoryVolume *volume, const char *path, struct fault *fault)
{
	int result = volume->on_disk && *scratch_disk() ?
			     scratch_mount(SCRATCH_VOLUME, volume->volume, volume->size_bytes, path, fault) :
			     mount_tmpfs(volume, path, fault);

	if (result < 0)
		return -1;
	if (chown(path, pod_userns_map_id(volume->uid), pod_userns_map_id(volume->gid)) == 0 &&
	    chmod(path, volume->mode) == 0)
		return 0;
	fault_errno(fault, "set mode and owner", path);
	umount2(path, MNT_DETACH);
	return -1;
}

/* Makes the volume's root for the first container that names the volume. */
static int ensure_volume(const MemoryVolume *volume, char *path, size_t size, struct fault *fault)
{
	if (path_format(path, size, MEMORY_DIRECTORY "/%s", volume->volume) < 0)
		return fault_errno(fault, "make memory volume", volume->volume);
	if (mkdir(MEMORY_DIRECTORY, 0700) < 0 && errno != EEXIST)
		return fault_errno(fault, "mkdir", MEMORY_DIRECTORY);
	if (mkdir(path, 0700) < 0)
		return errno == EEXIST ? 0 : fault_errno(fault, "mkdir", path);
	if (mount_volume(volume, path, fault) == 0)
		return 0;
	rmdir(path);
	return -1;
}

static int set_attributes(int fd, const MemoryVolume *volume, struct fault *fault)
{
	char path[64];

	/* By descriptor, because a container may have replaced the name by now.  chmod(2) takes no O_PATH descriptor, only
	 * its path in proc. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fchownat(fd, "", pod_userns_map_id(volume->uid), pod_userns_map_id(volume->gid), AT_EMPTY_PATH) < 0 ||
	    chmod(path, volume->mode) < 0)
		return fault_errno(fault, "make sub path in memory volume", volume->volume);
	return 0;
}

/* Opens one part of the sub path: a directory (created if missing) or a file.  Symbolic links are not followed: an
 * earlier part would not be a directory, and the last part must not be a link. */
static int step(int at, const char *name, const MemoryVolume *volume, struct fault *fault)
{
	int made = mkdirat(at, name, 0700);
	int fd;

	if (made < 0 && errno != EEXIST)
		return fault_errno(fault, "make sub path in memory volume", volume->volume);
	fd = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return fault_errno(fault, "open sub path in memory volume", volume->volume);
	if (made < 0 || set_attributes(fd, volume, fault) == 0)
		return fd;
	close(fd);
	return -1;
}

static int walk(int at, const MemoryVolume *volume, struct fault *fault)
{
	char names[4096];
	char *rest = names;
	char *name;

	snprintf(names, sizeof(names), "%s", volume->sub_path);
	while (at >= 0 && (name = strsep(&rest, "/"))) {
		int next = -1;

		if (!*name || strcmp(name, ".") == 0)
			continue;
		if (!file_name_valid(name))
			fault_set(fault, INVALID_ARGUMENT, "memory volume %s: sub path %.200s: not a clean path",
				  volume->volume, volume->sub_path);
		else
			next = step(at, name, volume, fault);
		close(at);
		at = next;
	}
	return at;
}

int memory_volume_mount(const char *directory, const MemoryVolume *volume, struct fault *fault)
{
	char root[PATH_SIZE];
	struct stat kind;
	int part, result = -1;

	if (ensure_volume(volume, root, sizeof(root), fault) < 0)
		return -1;
	part = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (part < 0)
		return fault_errno(fault, "open", root);
	part = walk(part, volume, fault);
	if (part < 0)
		return -1;
	if (fstat(part, &kind) < 0)
		fault_errno(fault, "stat", volume->volume);
	else if (!S_ISDIR(kind.st_mode) && !S_ISREG(kind.st_mode))
		fault_set(fault, FAILED_PRECONDITION,
			  "memory volume %s: sub path %.200s: neither a directory nor a file", volume->volume,
			  volume->sub_path);
	else
		result = volume_bind(part, directory, volume->name, 0, fault);
	close(part);
	return result;
}
