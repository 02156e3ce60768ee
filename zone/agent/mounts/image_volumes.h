/* Image volumes.  Below a container's directory, images/<name> is the image's stack (see rootfs.h), and volumes/<name>
 * the part that the container sees. */
#ifndef MOUNTS_IMAGE_VOLUMES_H
#define MOUNTS_IMAGE_VOLUMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/messages.h"
#include "sys/fault.h"

enum { IMAGE_VOLUMES_MAX = 32 };

int image_volumes_check(const CreateContainer *untrusted, struct fault *fault);
/* A failure leaves partial mounts to volumes_unmount.  `needs_chown`: see rootfs_mount. */
int image_volume_mount(const char *directory, const ImageVolume *volume, bool *needs_chown, struct fault *fault);
int image_volume_change_owners(const char *directory, const ImageVolume *volume, struct fault *fault);
/* Makes volumes/<name>, a directory or a file, and writes its path. */
int volume_mount_point(char *path, size_t size, const char *directory, const char *name, bool is_directory,
		       struct fault *fault);
/* Binds a file or directory (an O_PATH descriptor) to volumes/<name>, with MOUNT_ATTR_*. */
int volume_bind(int part, const char *directory, const char *name, uint64_t attributes, struct fault *fault);
/* Unmounts and removes all volumes that exist, memory volumes included. */
int volumes_unmount(const char *directory, struct fault *fault);

#endif
