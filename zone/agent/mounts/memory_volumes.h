/* Memory volumes: each is a tmpfs below /run/xenpod/memory until the zone ends.  Below a container's directory,
 * volumes/<name> is the part that the container sees. */
#ifndef MOUNTS_MEMORY_VOLUMES_H
#define MOUNTS_MEMORY_VOLUMES_H

#include "channel/messages.h"
#include "sys/fault.h"

enum { MEMORY_VOLUMES_MAX = 256 };

int memory_volumes_check(const CreateContainer *untrusted, struct fault *fault);
/* A failure leaves volumes/<name> to volumes_unmount. */
int memory_volume_mount(const char *directory, const MemoryVolume *volume, struct fault *fault);

#endif
