#include "mounts/owners.h"

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "sys/pod_userns.h"

#define CAPABILITY "security.capability"

/* Limits the cost of a malicious image; real images stay far below. */
enum { ENTRIES_MAX = 1000000, DEPTH_MAX = 512, CAPABILITY_MAX = 64 };

struct walk {
	const char *root;
	unsigned int entries;
	unsigned int depth;
	struct fault *fault;
};

static int failed(struct walk *walk, const char *operation, const char *name)
{
	if (errno == ENOSPC)
		return fault_set(walk->fault, RESOURCE_EXHAUSTED,
				 "change owner: %s: the zone's memory is too small for so many files", walk->root);
	return fault_errno(walk->fault, operation, name);
}

static int change_one(struct walk *walk, const char *name, const struct stat *now)
{
	uint8_t capability[CAPABILITY_MAX];
	ssize_t size = S_ISREG(now->st_mode) ? lgetxattr(name, CAPABILITY, capability, sizeof(capability)) : -1;

	if (lchown(name, pod_userns_map_id(now->st_uid), pod_userns_map_id(now->st_gid)) < 0)
		return failed(walk, "change owner", name);
	if (!S_ISLNK(now->st_mode) && (now->st_mode & (S_ISUID | S_ISGID)) &&
	    chmod(name, now->st_mode & 07777) < 0)
		return failed(walk, "restore mode", name);
	if (size > 0 && lsetxattr(name, CAPABILITY, capability, (size_t)size, 0) < 0)
		return failed(walk, "restore capabilities", name);
	return 0;
}

static int change_directory(struct walk *walk);

static int change_entry(struct walk *walk, const char *name, int above)
{
	struct stat now;
	int result;

	if (++walk->entries > ENTRIES_MAX)
		return fault_set(walk->fault, RESOURCE_EXHAUSTED, "change owner: %s: more than %d files",
				 walk->root, ENTRIES_MAX);
	if (lstat(name, &now) < 0)
		return failed(walk, "stat", name);
	if (change_one(walk, name, &now) < 0)
		return -1;
	if (!S_ISDIR(now.st_mode))
		return 0;
	if (chdir(name) < 0)
		return failed(walk, "chdir", name);
	result = change_directory(walk);
	if (fchdir(above) < 0)
		return failed(walk, "chdir", "..");
	return result;
}

/* Changes the entries of the working directory.  Its own owner has been changed before: the overlay has therefore
 * copied the directory up, and changes of its entries do not disturb the listing. */
static int change_directory(struct walk *walk)
{
	DIR *directory;
	struct dirent *entry;
	int result = 0;

	if (++walk->depth > DEPTH_MAX)
		return fault_set(walk->fault, RESOURCE_EXHAUSTED, "change owner: %s: deeper than %d directories",
				 walk->root, DEPTH_MAX);
	directory = opendir(".");
	if (!directory)
		return failed(walk, "opendir", walk->root);
	while (!result && (errno = 0, entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			result = change_entry(walk, entry->d_name, dirfd(directory));
	if (!result && errno)
		result = failed(walk, "readdir", walk->root);
	closedir(directory);
	walk->depth--;
	return result;
}

int owners_change(const char *root, struct fault *fault)
{
	struct walk walk = { .root = root, .fault = fault };
	struct stat now;

	if (chdir(root) < 0 || stat(".", &now) < 0)
		return failed(&walk, "chdir", root);
	if (change_one(&walk, ".", &now) < 0)
		return -1;
	return change_directory(&walk);
}
