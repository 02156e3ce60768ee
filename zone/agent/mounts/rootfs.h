/* A container's root: the image's stack under its own writable layer, on the scratch disk or in memory. */
#ifndef MOUNTS_ROOTFS_H
#define MOUNTS_ROOTFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mounts/stack.h"
#include "sys/fault.h"

enum access { WRITABLE, READ_ONLY };

/* Mounts, below `directory`: the stack (see stack.h), "writable" (a tmpfs, or from the scratch disk), and "rootfs" (the
 * overlay).  A read-only root has no "writable".  A read-only root of a single file system also has no overlay, unless
 * its owners must be changed.  `needs_chown` is set if rootfs_change_owners has work to do. */
int rootfs_mount(const char *directory, const struct stack *stack, enum access access, bool *needs_chown,
		 struct fault *fault);
/* The path of a read-only root.  -1 with errno. */
int rootfs_read_only_path(char *path, size_t size, const char *directory, const struct stack *stack, bool needs_chown);
/* Makes the owners the pod's.  Runs in a separate process (see owners.h). */
int rootfs_change_owners(const char *directory, struct fault *fault);
/* Opens (O_PATH) a path in a writable root; symbolic links stay inside.  -1 with errno. */
int rootfs_open(const char *directory, const char *path);
/* Undoes all mounts that exist. */
int rootfs_unmount(const char *directory, struct fault *fault);

/* A container's use of its root, and the limits. */
struct disk_usage {
	uint64_t bytes, inodes;
	uint64_t bytes_limit, inodes_limit;
};

/* 1: the file system is shared, and the figures include other users.  -1: no writable layer. */
int rootfs_usage(const char *directory, struct disk_usage *usage);

#endif
