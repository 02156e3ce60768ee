/* Everything that is mounted for a container: its root, its image volumes and memory volumes. */
#ifndef MOUNTS_MOUNTS_H
#define MOUNTS_MOUNTS_H

#include <stdbool.h>

#include "channel/messages.h"
#include "mounts/image_volumes.h"

/* Which of them need mounts_change_owners. */
struct mounts {
	bool root_needs_chown;
	bool needs_chown[IMAGE_VOLUMES_MAX];
};

int mounts_check(const CreateContainer *untrusted, struct fault *fault);
/* The disks to wait for, by number: the root's come first, then the volumes'.  NULL after the last. */
const char *mounts_disk(const CreateContainer *request, size_t number);
/* A failure leaves what is half done to mounts_unmount.  1: mounts_change_owners has work to do. */
int mounts_make(struct mounts *mounts, const char *directory, const CreateContainer *request, struct fault *fault);
/* Runs in a process of its own. */
int mounts_change_owners(const struct mounts *mounts, const char *directory, const CreateContainer *request,
			 struct fault *fault);
/* Undoes whatever is there.  What the container had on the scratch disk may then be trash (see scratch.h). */
int mounts_unmount(const char *directory, const char *id, struct fault *fault);

#endif
