/* The space of containers' writes to their roots. */
#ifndef CONTAINER_LAYER_USE_H
#define CONTAINER_LAYER_USE_H

#include "container/container.h"
#include "mounts/rootfs.h"

/* For a layer on a shared file system: the last count.  A separate process counts, at most a twentieth of the time.
 * -1: no writable layer. */
int layer_use(struct container *container, struct disk_usage *usage);

#endif
