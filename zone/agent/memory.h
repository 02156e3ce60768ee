/* Memory volumes: a tmpfs for each below /run/xenpod/memory, there until the zone ends; below a container's
 * directory, volumes/<name> is what of it the container is shown. */
#ifndef MEMORY_H
#define MEMORY_H

#include "fault.h"
#include "messages.h"

enum { MEMORY_MAX = 64 };

int memory_check(const CreateContainer *untrusted, struct fault *fault);
/* What is half done of volumes/<name> is left to volumes_unmount. */
int memory_mount(const char *directory, const MemoryVolume *volume, struct fault *fault);

#endif
