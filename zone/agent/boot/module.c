#include "boot/module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/log.h"

#define COMPRESSED 4 /* MODULE_INIT_COMPRESSED_FILE of linux/module.h, since Linux 5.17 */
#define LARGEST (16 << 20)
#define PATHS 64
#define COMMAND_LINE 2048 /* COMMAND_LINE_SIZE of x86 */

/* A part of modules.dep, without a final NUL. */
struct text {
	const char *start;
	size_t length;
};

/* Whether the word (its first `prefix` characters are a name) is for the module of this file; - and _ are equal. */
static bool is_parameter(const char *word, size_t prefix, const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *base = slash ? slash + 1 : path;

	if (strlen(base) < prefix || strncmp(base + prefix, ".ko", 3) != 0)
		return false;
	for (size_t i = 0; i < prefix; i++)
		if ((word[i] == '-' ? '_' : word[i]) != (base[i] == '-' ? '_' : base[i]))
			return false;
	return true;
}

/* Like modprobe: the kernel itself applies these words only to built-in modules. */
static void parameters(const char *path, char *found, size_t size)
{
	char line[COMMAND_LINE];
	char *rest = line;
	char *word;
	size_t used = 0;

	found[0] = '\0';
	if (file_read("/proc/cmdline", line, sizeof(line)) < 0)
		return;
	while ((word = strsep(&rest, " \n"))) {
		size_t prefix = strcspn(word, ".=");
		size_t length = strlen(word + prefix);

		if (word[prefix] != '.' || used + length >= size || !is_parameter(word, prefix, path))
			continue;
		memcpy(found + used, word + prefix + 1, length);
		used += length;
		found[used - 1] = ' ';
		found[used] = '\0';
	}
}

int module_load(const char *path)
{
	size_t length = strlen(path);
	bool plain = length > 3 && strcmp(path + length - 3, ".ko") == 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char given[COMMAND_LINE];
	int result, error;

	if (fd < 0)
		return -1;
	parameters(path, given, sizeof(given));
	result = (int)syscall(SYS_finit_module, fd, given, plain ? 0 : COMPRESSED);
	error = errno;
	close(fd);
	errno = error;
	return result < 0 && error == EEXIST ? 0 : result;
}

/* Takes the text up to the first `end` from the rest, including `end`. */
static struct text take(struct text *rest, char end)
{
	const char *found = memchr(rest->start, end, rest->length);
	struct text taken = { rest->start, found ? (size_t)(found - rest->start) : rest->length };
	size_t used = taken.length + (found ? 1 : 0);

	rest->start += used;
	rest->length -= used;
	return taken;
}

/* The name of "kernel/fs/9p/9p.ko.xz" is "9p"; - and _ are equal. */
static bool is_module(struct text path, const char *name)
{
	const char *slash = memrchr(path.start, '/', path.length);
	const char *base = slash ? slash + 1 : path.start;
	size_t left = path.length - (size_t)(base - path.start);
	size_t length = strlen(name);

	if (left < length + 3 || memcmp(base + length, ".ko", 3) != 0)
		return false;
	for (size_t i = 0; i < length; i++)
		if ((base[i] == '_' ? '-' : base[i]) != (name[i] == '_' ? '-' : name[i]))
			return false;
	return true;
}

static void load(const char *directory, struct text path)
{
	char full[512];

	if (path_format(full, sizeof(full), "%s/%.*s", directory, (int)path.length, path.start) < 0 ||
	    module_load(full) < 0)
		log_errno("load module", full);
}

/* A line of modules.dep is "path: the paths it needs, nearest first". */
static void load_line(const char *directory, struct text path, struct text needs)
{
	struct text order[PATHS];
	size_t count = 0;

	while (needs.length && count < PATHS) {
		order[count] = take(&needs, ' ');
		count += order[count].length ? 1 : 0;
	}
	while (count)
		load(directory, order[--count]);
	load(directory, path);
}

static void load_named(const char *directory, struct text all, const char *name)
{
	while (all.length) {
		struct text line = take(&all, '\n');
		struct text path = take(&line, ':');

		if (is_module(path, name)) {
			load_line(directory, path, line);
			return;
		}
	}
}

static const char *map(const char *path, size_t *length)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat file;
	void *mapped = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (fstat(fd, &file) == 0) {
		*length = (size_t)file.st_size;
		errno = EFBIG;
		if (file.st_size > 0 && file.st_size <= LARGEST)
			mapped = mmap(NULL, *length, PROT_READ, MAP_PRIVATE, fd, 0);
	}
	close(fd);
	return mapped == MAP_FAILED ? NULL : mapped;
}

int modules_load(const char *directory, const char *const *names, size_t count)
{
	char path[256];
	size_t length;
	const char *mapped;

	if (path_format(path, sizeof(path), "%s/modules.dep", directory) < 0 || !(mapped = map(path, &length))) {
		log_errno("read", path);
		return -1;
	}
	for (size_t i = 0; i < count; i++)
		load_named(directory, (struct text){ mapped, length }, names[i]);
	munmap((void *)(uintptr_t)mapped, length);
	return 0;
}
