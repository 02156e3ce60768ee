/* The file systems of an image, read-only and stacked: number 0 is the lowest.  Each is mounted at
 * <directory>/lower<number>. */
#ifndef MOUNTS_STACK_H
#define MOUNTS_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/messages.h"
#include "sys/fault.h"

enum {
	STACK_MAX = 8,
	/* Length of overlay's mount options: the kernel takes a page of 4096 bytes. */
	OPTIONS_SIZE = 4096,
};

struct stack {
	Filesystem *const *lowest;
	size_t count;
	/* The writable layer above the stack. */
	const char *scratch; /* its name on the scratch disk; NULL: always in memory */
	uint64_t writable_bytes; /* 0: no separate limit */
};

/* `owner` names the stack in the fault. */
int stack_check(const struct stack *untrusted, const char *owner, struct fault *fault);
/* A failure leaves partial mounts to stack_unmount.  `mapped`: files appear with the pod's ids; not every kernel and
 * file system supports this.  `flags`: MS_*. */
int stack_mount(const char *directory, const struct stack *stack, bool mapped, unsigned long flags,
		struct fault *fault);
/* The mount point of a file system.  -1 with errno. */
int stack_layer_path(char *path, size_t size, const char *directory, size_t number);
/* Writes overlay's "lowerdir=", topmost first.  Returns its length, or -1 with errno. */
int stack_lowerdir(char *options, size_t size, const char *directory, size_t count);
/* Undoes all mounts that exist. */
int stack_unmount(const char *directory, struct fault *fault);
/* Unmounts and removes a directory; a missing directory is no error. */
int mount_point_remove(const char *path, struct fault *fault);

#endif
