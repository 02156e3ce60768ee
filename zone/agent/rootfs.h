/* A container's root: the image's disk, read-only, under a layer in memory of its own. */
#ifndef ROOTFS_H
#define ROOTFS_H

#include <stdint.h>

#include "fault.h"

/* Below `directory`: lower (the disk), writable (a tmpfs), rootfs (the overlay). */
int rootfs_mount(const char *directory, const char *disk, const char *type, struct fault *fault);
/* Undoes all that is there of it. */
int rootfs_unmount(const char *directory, struct fault *fault);

/* What the container has written, and may write. */
struct disk_usage {
	uint64_t bytes, inodes;
	uint64_t bytes_limit, inodes_limit;
};

int rootfs_usage(const char *directory, struct disk_usage *usage);

#endif
