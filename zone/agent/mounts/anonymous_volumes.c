#include "mounts/anonymous_volumes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mounts/image_volumes.h"
#include "mounts/rootfs.h"
#include "sys/file.h"
#include "sys/name.h"
#include "sys/pod_userns.h"

/* Where the files of one volume are written: in the container's writable layer, because its limit and its usage include
 * the volumes. */
struct layer {
	char directory[PATH_SIZE + 96];
	char upper[PATH_SIZE + 104];
	char work[PATH_SIZE + 104];
};

int anonymous_volumes_check(const CreateContainer *untrusted, struct fault *fault)
{
	if (untrusted->n_anonymous_volumes > ANONYMOUS_VOLUMES_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "create container: %s: more than %d anonymous volumes",
				 untrusted->id, ANONYMOUS_VOLUMES_MAX);
	for (size_t i = 0; i < untrusted->n_anonymous_volumes; i++) {
		const AnonymousVolume *volume = untrusted->anonymous_volumes[i];
		const char *wrong = NULL;

		if (!file_name_valid(volume->name))
			wrong = "no plain name";
		else if (volume->path[0] != '/' || strlen(volume->path) >= 4096)
			wrong = "its path is not absolute, or too long";
		if (wrong)
			return fault_set(fault, INVALID_ARGUMENT, "create container: %s: anonymous volume %zu: %s",
					 untrusted->id, i, wrong);
	}
	return 0;
}

static int path_fault(const AnonymousVolume *volume, struct fault *fault)
{
	const char *cause;

	switch (errno) {
	case ENOTDIR:
		cause = "the image has something else there";
		break;
	case ELOOP:
		cause = "too many symbolic links";
		break;
	default:
		cause = strerror(errno);
	}
	return fault_set(fault, FAILED_PRECONDITION, "mount volume of the image: %.200s: not a directory: %s",
			 volume->path, cause);
}

/* Opens the root's directory at the volume's path.  `content` is -1 if the root has nothing there. */
static int open_content(const char *directory, const AnonymousVolume *volume, int *content, struct fault *fault)
{
	struct stat kind;

	*content = rootfs_open(directory, volume->path);
	if (*content < 0)
		return errno == ENOENT ? 0 : path_fault(volume, fault);
	if (fstat(*content, &kind) == 0 && S_ISDIR(kind.st_mode))
		return 0;
	close(*content);
	errno = ENOTDIR;
	return path_fault(volume, fault);
}

static int make_directory(const char *path, struct fault *fault)
{
	return mkdir(path, 0755) < 0 && errno != EEXIST ? fault_errno(fault, "mkdir", path) : 0;
}

static int make_layer(struct layer *layer, const char *directory, const char *name, struct fault *fault)
{
	char all[PATH_SIZE + 24];

	if (path_format(all, sizeof(all), "%s/writable/volumes", directory) < 0 ||
	    path_format(layer->directory, sizeof(layer->directory), "%s/%s", all, name) < 0 ||
	    path_format(layer->upper, sizeof(layer->upper), "%s/upper", layer->directory) < 0 ||
	    path_format(layer->work, sizeof(layer->work), "%s/work", layer->directory) < 0)
		return fault_errno(fault, "mount volume of the image", name);
	if (make_directory(all, fault) < 0 || make_directory(layer->directory, fault) < 0 ||
	    make_directory(layer->upper, fault) < 0)
		return -1;
	return make_directory(layer->work, fault);
}

/* Owner and mode of the volume: as in the root, else those of a directory that the pod's root makes. */
static int set_attributes(const struct layer *layer, int content, struct fault *fault)
{
	struct stat root;

	if (content < 0)
		return pod_userns_chown(layer->upper) < 0 ? fault_errno(fault, "chown", layer->upper) : 0;
	if (fstat(content, &root) < 0)
		return fault_errno(fault, "stat", layer->upper);
	if (chown(layer->upper, root.st_uid, root.st_gid) < 0)
		return fault_errno(fault, "chown", layer->upper);
	return chmod(layer->upper, root.st_mode & 07777) < 0 ? fault_errno(fault, "chmod", layer->upper) : 0;
}

/* 1: the directory has no entries.  -1 with the fault. */
static int is_empty(int content, const AnonymousVolume *volume, struct fault *fault)
{
	int fd = openat(content, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	int found = 0;

	if (!entries) {
		fault_errno(fault, "opendir", volume->path);
		if (fd >= 0)
			close(fd);
		return -1;
	}
	while (!found && (errno = 0, entry = readdir(entries)))
		found = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
	if (!found && errno)
		found = fault_errno(fault, "readdir", volume->path);
	closedir(entries);
	return found < 0 ? -1 : !found;
}

/* No overlay: programs that make overlays themselves (Docker in a container) cannot have the files of one on another. */
static int bind_layer(const char *directory, const char *name, const struct layer *layer, struct fault *fault)
{
	int upper = open(layer->upper, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int result;

	if (upper < 0)
		return fault_errno(fault, "open", layer->upper);
	result = volume_bind(upper, directory, name, 0, fault);
	close(upper);
	return result;
}

/* The root's directory below the volume's layer.  The directory is named by its descriptor: a path of an image may have
 * the characters that separate overlay's options. */
static int mount_overlay(const char *directory, const char *name, const struct layer *layer, int content,
			 struct fault *fault)
{
	char path[PATH_SIZE], options[3 * PATH_SIZE];

	if (path_format(options, sizeof(options), "lowerdir=/proc/self/fd/%d,upperdir=%s,workdir=%s", content,
			layer->upper, layer->work) < 0)
		return fault_errno(fault, "mount volume of the image", name);
	if (volume_mount_point(path, sizeof(path), directory, name, true, fault) < 0)
		return -1;
	if (mount("overlay", path, "overlay", 0, options) < 0)
		return fault_errno(fault, "mount overlay", path);
	return 0;
}

static int mount_content(const char *directory, const AnonymousVolume *volume, int content, struct fault *fault)
{
	struct layer layer;
	int empty;

	if (make_layer(&layer, directory, volume->name, fault) < 0 || set_attributes(&layer, content, fault) < 0)
		return -1;
	empty = content < 0 ? 1 : is_empty(content, volume, fault);
	if (empty < 0)
		return -1;
	return empty ? bind_layer(directory, volume->name, &layer, fault) :
		       mount_overlay(directory, volume->name, &layer, content, fault);
}

int anonymous_volumes_mount(const char *directory, const CreateContainer *request, struct fault *fault)
{
	for (size_t i = 0; i < request->n_anonymous_volumes; i++) {
		const AnonymousVolume *volume = request->anonymous_volumes[i];
		int content, result;

		if (open_content(directory, volume, &content, fault) < 0)
			return -1;
		result = mount_content(directory, volume, content, fault);
		if (content >= 0)
			close(content);
		if (result < 0)
			return -1;
	}
	return 0;
}
