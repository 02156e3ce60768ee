/* A container's root: the image's disk, read-only, under a layer in memory of its own. */
#ifndef ROOTFS_H
#define ROOTFS_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"

enum use { WRITABLE, READ_ONLY };

/* "squashfs" or "erofs". */
bool rootfs_type_valid(const char *untrusted);

/* Below `directory`: lower (the disk), writable (a tmpfs), rootfs (the overlay); to be only read it is lower
 * alone, unless its owners have to be changed. */
int rootfs_mount(const char *directory, const char *disk, const char *type, enum use use, bool *to_change,
		 struct fault *fault);
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
