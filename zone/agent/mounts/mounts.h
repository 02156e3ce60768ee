/* All mounts of a container: its root and its volumes. */
#ifndef MOUNTS_MOUNTS_H
#define MOUNTS_MOUNTS_H

#include <stdbool.h>

#include "channel/messages.h"
#include "mounts/image_volumes.h"

/* The mounts that need mounts_change_owners. */
struct mounts {
	bool root_needs_chown;
	bool needs_chown[IMAGE_VOLUMES_MAX];
};

int mounts_check(const CreateContainer *untrusted, struct fault *fault);
/* The disks to wait for, by number: first the root's, then the volumes'.  NULL after the last. */
const char *mounts_disk(const CreateContainer *request, size_t number);
/* A failure leaves partial mounts to mounts_unmount.  1: mounts_change_owners has work to do. */
int mounts_make(struct mounts *mounts, const char *directory, const CreateContainer *request, struct fault *fault);
/* Runs in a separate process.  Makes the volumes that begin with the root's content, too. */
int mounts_change_owners(const struct mounts *mounts, const char *directory, const CreateContainer *request,
			 struct fault *fault);
/* Undoes all mounts that exist.  The container's files on the scratch disk may then be trash (see scratch.h). */
int mounts_unmount(const char *directory, const char *id, struct fault *fault);

#endif
