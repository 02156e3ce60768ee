#include "container/bundle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/name.h"
#include "sys/pod_userns.h"

enum { FILES_MAX = 64 };

static int check_files(const CreateContainer *untrusted, struct fault *fault)
{
	if (untrusted->n_files > FILES_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "create container: %s: more than %d files",
				 untrusted->id, FILES_MAX);
	for (size_t i = 0; i < untrusted->n_files; i++) {
		const File *file = untrusted->files[i];

		if (!file_name_valid(file->name))
			return fault_set(fault, INVALID_ARGUMENT, "create container: %s: file %zu has no plain name",
					 untrusted->id, i);
		if (file->mode & ~07777u)
			return fault_set(fault, INVALID_ARGUMENT, "create container: %s: file %s: mode %o",
					 untrusted->id, file->name, file->mode);
	}
	return 0;
}

int bundle_check(const CreateContainer *untrusted, struct fault *fault)
{
	if (!id_valid(untrusted->id))
		return fault_set(fault, INVALID_ARGUMENT, "create container: not an id");
	if (!untrusted->config_json.len)
		return fault_set(fault, INVALID_ARGUMENT, "create container: %s: no config", untrusted->id);
	return check_files(untrusted, fault);
}

static int write_one(const char *directory, const char *name, const ProtobufCBinaryData *content, mode_t mode,
		     struct fault *fault)
{
	char path[PATH_SIZE + 80];

	if (path_format(path, sizeof(path), "%s/%s", directory, name) < 0 ||
	    file_write(path, content->data, content->len, mode) < 0)
		return fault_errno(fault, "write", name);
	return 0;
}

/* The files of a pod with a user namespace belong to its root. */
static int chown_one(const char *directory, const char *name, struct fault *fault)
{
	char path[PATH_SIZE + 80];

	if (path_format(path, sizeof(path), "%s/%s", directory, name) < 0 || pod_userns_chown(path) < 0)
		return fault_errno(fault, "change owner", name);
	return 0;
}

static int write_all(const char *directory, const CreateContainer *request, struct fault *fault)
{
	char files[PATH_SIZE + 16];

	if (path_format(files, sizeof(files), "%s/files", directory) < 0 || mkdir(files, 0755) < 0)
		return fault_errno(fault, "mkdir", directory);
	if (write_one(directory, "config.json", &request->config_json, 0600, fault) < 0)
		return -1;
	for (size_t i = 0; i < request->n_files; i++)
		if (write_one(files, request->files[i]->name, &request->files[i]->content,
			      request->files[i]->mode, fault) < 0 ||
		    chown_one(files, request->files[i]->name, fault) < 0)
			return -1;
	return 0;
}

int bundle_write(const char *directory, const CreateContainer *request, struct fault *fault)
{
	struct fault ignored;

	if (mkdir(directory, 0755) < 0)
		return fault_errno(fault, "mkdir", directory);
	if (write_all(directory, request, fault) == 0)
		return 0;
	bundle_remove(directory, &ignored);
	return -1;
}

/* Removes the files of a directory.  All are plain files of bundle_write and crun: the mounts are gone. */
static int remove_files(const char *path, struct fault *fault)
{
	DIR *directory = opendir(path);
	struct dirent *entry;
	int result = 0;

	if (!directory)
		return errno == ENOENT ? 0 : fault_errno(fault, "opendir", path);
	while ((entry = readdir(directory)))
		if (entry->d_type != DT_DIR && unlinkat(dirfd(directory), entry->d_name, 0) < 0)
			result = fault_errno(fault, "unlink", entry->d_name);
	closedir(directory);
	return result;
}

int bundle_remove(const char *directory, struct fault *fault)
{
	char files[PATH_SIZE + 16];

	if (path_format(files, sizeof(files), "%s/files", directory) < 0)
		return fault_errno(fault, "remove", directory);
	if (remove_files(files, fault) < 0 || remove_files(directory, fault) < 0)
		return -1;
	if (rmdir(files) < 0 && errno != ENOENT)
		return fault_errno(fault, "rmdir", files);
	if (rmdir(directory) < 0 && errno != ENOENT)
		return fault_errno(fault, "rmdir", directory);
	return 0;
}
