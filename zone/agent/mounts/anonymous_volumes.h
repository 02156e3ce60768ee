/* Anonymous volumes (VOLUME of an image).  Each is a writable directory of its own, volumes/<name> below a container's
 * directory, that begins as the root's directory at a path. */
#ifndef MOUNTS_ANONYMOUS_VOLUMES_H
#define MOUNTS_ANONYMOUS_VOLUMES_H

#include "channel/messages.h"
#include "sys/fault.h"

enum { ANONYMOUS_VOLUMES_MAX = 64 };

int anonymous_volumes_check(const CreateContainer *untrusted, struct fault *fault);
/* The root must be complete, with its final owners.  A failure leaves partial mounts to volumes_unmount. */
int anonymous_volumes_mount(const char *directory, const CreateContainer *request, struct fault *fault);

#endif
