/* Small files, whole, without blocking: proc, sysfs, cgroups, tmpfs. */
#ifndef FILE_H
#define FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Gives the length (the text is ended with a NUL, cut at size - 1), or -1 with errno. */
ssize_t file_read(const char *path, char *text, size_t size);
/* A new file, or the old one's contents replaced.  -1 with errno. */
int file_write(const char *path, const void *content, size_t length, mode_t mode);
/* Into a file that exists (proc, sysfs, cgroup). */
int file_put(const char *path, const char *text);
/* A path built by printf's rules; -1 with ENAMETOOLONG when it does not fit. */
int path_set(char *path, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The number after `key` and a blank at a line's start ("" for a file that is one number). */
bool text_number(const char *text, const char *key, uint64_t *value);
/* An unsigned decimal number that is all of the text. */
bool number_parse(const char *text, uint64_t limit, uint64_t *value);

#endif
