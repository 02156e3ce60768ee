/* Small files read or written as a whole, paths, and numbers in texts.  For files that never block: proc, sysfs,
 * cgroups, tmpfs. */
#ifndef SYS_FILE_H
#define SYS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Holds the path of a container's directory, and of the agent's files directly below it. */
enum { PATH_SIZE = 256 };

/* Reads at most size - 1 bytes and adds a NUL.  Returns the length, or -1 with errno. */
ssize_t file_read(const char *path, char *text, size_t size);
/* Makes the file or replaces its contents.  -1 with errno. */
int file_write(const char *path, const void *content, size_t length, mode_t mode);
/* Writes to a file that must exist (proc, sysfs, cgroup).  -1 with errno. */
int file_overwrite(const char *path, const char *text);
/* Formats a path like printf.  -1 with ENAMETOOLONG if the path does not fit. */
int path_format(char *path, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Opens (O_PATH) a path as if `root` were the whole file system: symbolic links stay inside.  -1 with errno. */
int path_open_in_root(const char *root, const char *path);
/* Finds the number after `key` and a blank at the start of a line; key "" for a file with a single number. */
bool text_find_number(const char *text, const char *key, uint64_t *value);
/* Parses a text that consists of one unsigned decimal number of at most `limit`. */
bool number_parse(const char *text, uint64_t limit, uint64_t *value);

#endif
