/* The zone's scratch disk, /run/xenpod/scratch: its containers' writable layers and volumes are on the disk instead of
 * in memory.  Each is a directory on the disk; with a limit it is a separate file system, whose blocks are reserved. */
#ifndef MOUNTS_SCRATCH_H
#define MOUNTS_SCRATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "sys/fault.h"

#define SCRATCH_DIRECTORY "/run/xenpod/scratch"
#define SCRATCH_TRASH SCRATCH_DIRECTORY "/trash"

enum scratch_kind { SCRATCH_LAYER, SCRATCH_VOLUME };

/* Makes the disk's file system, and mounts it.  For a separate process, because it takes long. */
int scratch_make(const char *disk, struct fault *fault);
/* Notes that the disk is ready. */
void scratch_use(const char *disk);
/* The disk's name; "" without a disk. */
const char *scratch_disk(void);

/* Mounts a new directory of the disk on `path`, mode 0700.  `limit`: the most bytes of its files; 0: the disk's size.
 * RESOURCE_EXHAUSTED: the limit does not fit any more. */
int scratch_mount(enum scratch_kind kind, const char *name, uint64_t limit, const char *path, struct fault *fault);
/* Removes the unmounted directory; a missing directory is no error.  Its files are then in SCRATCH_TRASH, except those
 * of a directory with a limit. */
int scratch_forget(enum scratch_kind kind, const char *name, struct fault *fault);
/* The path of an unlimited layer's directory. */
int scratch_layer_path(char *path, unsigned long size, const char *name);

#endif
