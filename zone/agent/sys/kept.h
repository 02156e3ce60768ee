/* Files of the kernel that are read again and again: they stay open, since to open one costs more than to read it. */
#ifndef SYS_KEPT_H
#define SYS_KEPT_H

#include <stddef.h>
#include <sys/types.h>

/* As file_read.  For files of proc and of control groups that show the same thing whoever opens them, and whenever. */
ssize_t kept_read(const char *path, char *text, size_t size);
/* Closes those whose path has `part` in it: a file keeps a few KiB in the kernel, also when its group is gone. */
void kept_forget(const char *part);

#endif
