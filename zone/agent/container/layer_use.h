/* What containers have written to their roots. */
#ifndef CONTAINER_LAYER_USE_H
#define CONTAINER_LAYER_USE_H

#include "container/container.h"
#include "mounts/rootfs.h"

/* Of a layer that shares its file system with others it is what was counted last: counting goes on in a process of its
 * own, at most a twentieth of the time.  -1 where there is no writable layer. */
int layer_use(struct container *container, struct disk_usage *usage);

#endif
