/* Frequently read kernel files: they stay open, because an open costs more than a read. */
#ifndef SYS_FD_CACHE_H
#define SYS_FD_CACHE_H

#include <stddef.h>
#include <sys/types.h>

/* Like file_read, for files of proc and of control groups whose content does not depend on the opener or the time of
 * the open. */
ssize_t fd_cache_read(const char *path, char *text, size_t size);
/* Closes the files with `part` in their path: an open file uses a few KiB of the kernel, even after its group is
 * gone. */
void fd_cache_drop(const char *part);

#endif
