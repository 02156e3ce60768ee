/* The file systems of an image, read-only and one over the other: each is mounted at <directory>/lower<number>,
 * 0 is the lowest. */
#ifndef STACK_H
#define STACK_H

#include <stdbool.h>
#include <stddef.h>

#include "fault.h"
#include "messages.h"

enum {
	STACK_MAX = 8,
	/* Of overlay's mount options; the kernel takes a page of 4096 bytes. */
	OPTIONS_SIZE = 4096,
};

struct stack {
	Filesystem *const *lowest;
	size_t count;
};

/* `what`: whose it is, for the fault. */
int stack_check(const struct stack *untrusted, const char *what, struct fault *fault);
/* What is half done is left to stack_unmount.  `mapped`: their owners are shown as the pod's (not every kernel and
 * file system can).  `flags`: MS_*. */
int stack_mount(const char *directory, const struct stack *stack, bool mapped, unsigned long flags,
		struct fault *fault);
/* Where one of them is mounted; -1 with errno. */
int stack_place(char *path, size_t size, const char *directory, size_t number);
/* "lowerdir=", the topmost first; its length, or -1 with errno. */
int stack_option(char *options, size_t size, const char *directory, size_t count);
/* Undoes all that is there of it. */
int stack_unmount(const char *directory, struct fault *fault);
/* Unmounts and removes; what is not there is fine. */
int mount_point_drop(const char *path, struct fault *fault);

#endif
