/* A container's root: the image's stack under a layer in memory of its own. */
#ifndef ROOTFS_H
#define ROOTFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "stack.h"

enum use { WRITABLE, READ_ONLY };

/* Below `directory`: the stack (see stack.h), writable (a tmpfs), rootfs (the overlay).  To be only read, it is an
 * overlay without writable, or nothing but a stack of one; unless its owners have to be changed. */
int rootfs_mount(const char *directory, const struct stack *stack, enum use use, bool *to_change,
		 struct fault *fault);
/* Where to find what was mounted to be only read; -1 with errno. */
int rootfs_seen(char *path, size_t size, const char *directory, const struct stack *stack, bool to_change);
/* Where `to_change` was set: makes the owners the pod's, in a process of its own (see owners.h). */
int rootfs_change_owners(const char *directory, struct fault *fault);
/* Undoes all that is there of it. */
int rootfs_unmount(const char *directory, struct fault *fault);

/* What the container has written, and may write. */
struct disk_usage {
	uint64_t bytes, inodes;
	uint64_t bytes_limit, inodes_limit;
};

int rootfs_usage(const char *directory, struct disk_usage *usage);

#endif
