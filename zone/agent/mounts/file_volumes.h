/* File volumes: copies of small files of the host.  Each is a tmpfs, /run/xenpod/files/<owner>/<volume>; containers see
 * its `root`.  Beside it are `next`, the files under construction, and `version`, which the last part of a PutFiles
 * writes: the agent itself keeps no state of volumes. */
#ifndef MOUNTS_FILE_VOLUMES_H
#define MOUNTS_FILE_VOLUMES_H

#include <stddef.h>

#include "channel/messages.h"
#include "sys/fault.h"

enum {
	FILE_VOLUMES_MAX = 256, /* of a container */
	FILE_READ_MAX = 4096,
};

int file_volumes_check(const CreateContainer *untrusted, struct fault *fault);
/* Mounts a container's own and shared file volumes.  A failure leaves volumes/<name> to volumes_unmount. */
int file_volumes_mount(const char *directory, const CreateContainer *request, struct fault *fault);

int file_volume_put(const PutFiles *untrusted, struct fault *fault);
/* content: FILE_READ_MAX bytes. */
int file_volume_read(const ReadFile *untrusted, void *content, size_t *length, struct fault *fault);
/* Removes a container's file volumes, as far as they exist. */
int file_volumes_forget(const char *container, struct fault *fault);

#endif
