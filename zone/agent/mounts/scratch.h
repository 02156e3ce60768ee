/* The zone's scratch disk, /run/xenpod/scratch: its containers' writable layers and volumes are there, and not in its
 * memory.  Each is a directory of it; one with a limit is a file system of its own, whose blocks are reserved. */
#ifndef MOUNTS_SCRATCH_H
#define MOUNTS_SCRATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "sys/fault.h"

#define SCRATCH_DIRECTORY "/run/xenpod/scratch"
#define SCRATCH_TRASH SCRATCH_DIRECTORY "/trash"

enum scratch_kind { SCRATCH_LAYER, SCRATCH_VOLUME };

/* Makes the disk's file system, and mounts it.  For a process of its own, as it takes long. */
int scratch_make(const char *disk, struct fault *fault);
/* The disk is there from now on. */
void scratch_use(const char *disk);
/* The disk's name; "" where there is none. */
const char *scratch_disk(void);

/* Mounts a new directory of the disk on `path`, mode 0700.  `limit`: the bytes that its files can have; 0: what the
 * disk has.  A limit that does not fit any more is RESOURCE_EXHAUSTED. */
int scratch_mount(enum scratch_kind kind, const char *name, uint64_t limit, const char *path, struct fault *fault);
/* Removes the directory, once it is unmounted; one that is not there is fine.  What it had is then in SCRATCH_TRASH, but
 * for one with a limit. */
int scratch_forget(enum scratch_kind kind, const char *name, struct fault *fault);
/* The path of the directory of a layer that has no limit. */
int scratch_layer_path(char *path, unsigned long size, const char *name);

#endif
