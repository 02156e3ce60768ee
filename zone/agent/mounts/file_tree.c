#include "mounts/file_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/pod_userns.h"

#define REGULAR XENPOD__CHANNEL__V1__FILE_TYPE__FILE_TYPE_REGULAR
#define DIRECTORY XENPOD__CHANNEL__V1__FILE_TYPE__FILE_TYPE_DIRECTORY
#define SYMLINK XENPOD__CHANNEL__V1__FILE_TYPE__FILE_TYPE_SYMLINK

enum { DEPTH_MAX = 32, TARGET_MAX = 4096 };

/* The place of an entry: a name in an open directory. */
struct spot {
	int directory;
	const char *name;
	bool is_root;
};

static int entry_fault(const FileEntry *entry, struct fault *fault)
{
	return fault_errno(fault, "put files", entry->path);
}

/* Opens a directory of the tree; refuses symbolic links on the path. */
static int open_below(int top, const char *path)
{
	struct open_how how = {
		.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
	};

	return (int)syscall(SYS_openat2, top, path, &how, sizeof(how));
}

static int find_spot(int top, const FileEntry *entry, struct spot *spot, struct fault *fault)
{
	char parent[TARGET_MAX + 8];
	const char *slash = strrchr(entry->path, '/');
	const char *name = slash ? slash + 1 : entry->path;
	int length = slash ? (int)(slash - entry->path) : 0;

	*spot = (struct spot){ .name = "root", .is_root = true };
	if (entry->path[0]) {
		if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || length >= TARGET_MAX)
			return fault_set(fault, INVALID_ARGUMENT, "put files: %.200s: not a clean path", entry->path);
		*spot = (struct spot){ .name = name };
	}
	snprintf(parent, sizeof(parent), spot->is_root ? "." : "root/%.*s", length, entry->path);
	spot->directory = open_below(top, parent);
	return spot->directory < 0 ? entry_fault(entry, fault) : 0;
}

static uint32_t owner(const PutFiles *request, uint32_t id)
{
	return request->map_ids ? pod_userns_map_id(id) : id;
}

/* By descriptor: chmod(2) takes no O_PATH descriptor, only its path in proc. */
static int set_attributes(int directory, const char *name, const PutFiles *request, const FileEntry *entry,
			  struct fault *fault)
{
	int fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	char path[64];
	int result;

	if (fd < 0)
		return entry_fault(entry, fault);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	result = fchownat(fd, "", owner(request, entry->uid), owner(request, entry->gid), AT_EMPTY_PATH);
	if (result == 0 && entry->type != SYMLINK)
		result = chmod(path, entry->mode);
	if (result < 0)
		entry_fault(entry, fault);
	close(fd);
	return result;
}

static int put_directory(const struct spot *spot, const PutFiles *request, const FileEntry *entry, struct fault *fault)
{
	if (mkdirat(spot->directory, spot->name, 0700) < 0 && errno != EEXIST)
		return entry_fault(entry, fault);
	return set_attributes(spot->directory, spot->name, request, entry, fault);
}

static int put_symlink(int top, const struct spot *spot, const PutFiles *request, const FileEntry *entry,
		       struct fault *fault)
{
	char target[TARGET_MAX + 1], there[TARGET_MAX + 1];
	ssize_t length;

	if (!entry->content.len || entry->content.len > TARGET_MAX || memchr(entry->content.data, 0, entry->content.len))
		return fault_set(fault, INVALID_ARGUMENT, "put files: %.200s: no target", entry->path);
	memcpy(target, entry->content.data, entry->content.len);
	target[entry->content.len] = '\0';
	length = readlinkat(spot->directory, spot->name, there, sizeof(there));
	if (length == (ssize_t)entry->content.len && memcmp(there, target, entry->content.len) == 0)
		return 0;
	if (symlinkat(target, top, "next") < 0 || set_attributes(top, "next", request, entry, fault) < 0 ||
	    renameat(top, "next", spot->directory, spot->name) < 0)
		return entry_fault(entry, fault);
	return 0;
}

static int append(int fd, const uint8_t *data, size_t length)
{
	size_t done = 0;
	ssize_t n = 0;

	for (; done < length && n >= 0; done += n > 0 ? (size_t)n : 0)
		n = write(fd, data + done, length - done);
	return n < 0 ? -1 : 0;
}

static int copy(int from, int to)
{
	uint8_t data[16384];
	ssize_t n;

	while ((n = read(from, data, sizeof(data))) > 0)
		if (append(to, data, (size_t)n) < 0)
			return -1;
	return n < 0 ? -1 : 0;
}

/* Writes into the file that containers have mounted.  1: the file does not exist yet. */
static int write_in_place(int top, const struct spot *spot)
{
	int to = openat(spot->directory, spot->name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int from, result;

	if (to < 0)
		return errno == ENOENT ? 1 : -1;
	from = openat(top, "next", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	result = from < 0 ? -1 : copy(from, to);
	if (from >= 0)
		close(from);
	close(to);
	return result < 0 ? -1 : unlinkat(top, "next", 0);
}

static int put_regular(int top, const struct spot *spot, const PutFiles *request, const FileEntry *entry,
		       struct fault *fault)
{
	int fd = openat(top, "next", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	int result, moved = 1;

	if (fd < 0)
		return entry_fault(entry, fault);
	result = append(fd, entry->content.data, entry->content.len);
	close(fd);
	if (result < 0)
		return entry_fault(entry, fault);
	if (entry->more)
		return 0;
	if (spot->is_root && (moved = write_in_place(top, spot)) < 0)
		return entry_fault(entry, fault);
	if (moved == 0)
		return set_attributes(spot->directory, spot->name, request, entry, fault);
	if (set_attributes(top, "next", request, entry, fault) < 0)
		return -1;
	return renameat(top, "next", spot->directory, spot->name) < 0 ? entry_fault(entry, fault) : 0;
}

int file_tree_put(int top, const PutFiles *request, const FileEntry *untrusted, struct fault *fault)
{
	struct spot spot;
	int result;

	if (find_spot(top, untrusted, &spot, fault) < 0)
		return -1;
	if (untrusted->type == DIRECTORY)
		result = put_directory(&spot, request, untrusted, fault);
	else if (untrusted->type == REGULAR)
		result = put_regular(top, &spot, request, untrusted, fault);
	else if (untrusted->type == SYMLINK && !spot.is_root)
		result = put_symlink(top, &spot, request, untrusted, fault);
	else
		result = fault_set(fault, INVALID_ARGUMENT, "put files: %.200s: its type is none", untrusted->path);
	close(spot.directory);
	return result;
}

static int remove_below(int directory, const char *name, int depth);

static int remove_all(int directory, int depth)
{
	struct dirent *entry;
	DIR *entries = fdopendir(directory);
	int result = 0;

	if (!entries) {
		close(directory);
		return -1;
	}
	while ((entry = readdir(entries)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
		    remove_below(dirfd(entries), entry->d_name, depth + 1) < 0)
			result = -1;
	closedir(entries);
	return result;
}

static int remove_below(int directory, const char *name, int depth)
{
	int fd;

	if (unlinkat(directory, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR || depth > DEPTH_MAX)
		return -1;
	fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || remove_all(fd, depth) < 0)
		return -1;
	return unlinkat(directory, name, AT_REMOVEDIR);
}

static bool in_keep_list(const PutFiles *request, const char *name)
{
	for (size_t i = 0; i < request->n_keep; i++)
		if (strcmp(request->keep[i], name) == 0)
			return true;
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

int file_tree_prune(int top, const PutFiles *request, struct fault *fault)
{
	int root = openat(top, "root", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct dirent *entry;
	DIR *entries;
	int result = 0;

	if (root < 0)
		return errno == ENOTDIR ? 0 : fault_errno(fault, "put files", "root");
	entries = fdopendir(root);
	if (!entries) {
		close(root);
		return fault_errno(fault, "put files", "root");
	}
	while ((entry = readdir(entries)))
		if (!in_keep_list(request, entry->d_name) && remove_below(root, entry->d_name, 0) < 0)
			result = fault_errno(fault, "remove old files", entry->d_name);
	closedir(entries);
	return result;
}
