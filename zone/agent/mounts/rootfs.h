/* A container's root: the image's stack under a writable layer of its own, on the scratch disk or in memory. */
#ifndef MOUNTS_ROOTFS_H
#define MOUNTS_ROOTFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mounts/stack.h"
#include "sys/fault.h"

enum access { WRITABLE, READ_ONLY };

/* Mounts, below `directory`: the stack (see stack.h), "writable" (a tmpfs, or from the scratch disk), and "rootfs" (the overlay).  A read-only
 * root has no "writable", and one of a single file system no overlay either, unless its owners must be changed.
 * `needs_chown` is set where rootfs_change_owners has work to do. */
int rootfs_mount(const char *directory, const struct stack *stack, enum access access, bool *needs_chown,
		 struct fault *fault);
/* The path of a read-only root.  -1 with errno. */
int rootfs_read_only_path(char *path, size_t size, const char *directory, const struct stack *stack, bool needs_chown);
/* Makes the owners the pod's.  Runs in a process of its own (see owners.h). */
int rootfs_change_owners(const char *directory, struct fault *fault);
/* Undoes whatever is there. */
int rootfs_unmount(const char *directory, struct fault *fault);

/* What a container has written to its root, and may write. */
struct disk_usage {
	uint64_t bytes, inodes;
	uint64_t bytes_limit, inodes_limit;
};

/* 1: others share its file system, and what is used is what they use, too.  -1 where there is no writable layer. */
int rootfs_usage(const char *directory, struct disk_usage *usage);

#endif
