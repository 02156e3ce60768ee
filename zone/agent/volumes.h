/* Image volumes: below a container's directory, images/<name> (its stack, see rootfs.h) and volumes/<name> (what
 * of it the container is shown). */
#ifndef VOLUMES_H
#define VOLUMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "messages.h"

enum { VOLUMES_MAX = 32 };

int volumes_check(const CreateContainer *untrusted, struct fault *fault);
/* What is half done is left to volumes_unmount.  `to_change`: see rootfs_mount. */
int volume_mount(const char *directory, const ImageVolume *volume, bool *to_change, struct fault *fault);
int volume_change_owners(const char *directory, const ImageVolume *volume, struct fault *fault);
/* Puts a file or directory (an O_PATH descriptor) at volumes/<name>, with MOUNT_ATTR_*. */
int volume_show(int part, const char *directory, const char *name, uint64_t attributes, struct fault *fault);
/* Undoes all that is there of them. */
int volumes_unmount(const char *directory, struct fault *fault);

#endif
