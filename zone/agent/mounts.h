/* Everything that is mounted for a container: its root, its image and memory volumes. */
#ifndef MOUNTS_H
#define MOUNTS_H

#include <stdbool.h>

#include "messages.h"
#include "volumes.h"

struct mounts {
	bool root_to_change;
	bool to_change[VOLUMES_MAX];
};

/* The disk to wait for: the root's from 0 on, then the volumes'; NULL: that was all. */
const char *mounts_disk(const CreateContainer *request, size_t number);
/* What is half done is left to mounts_unmount.  1: mounts_change_owners has work to do. */
int mounts_make(struct mounts *mounts, const char *directory, const CreateContainer *request, struct fault *fault);
/* For a process of its own. */
int mounts_change_owners(const struct mounts *mounts, const char *directory, const CreateContainer *request,
			 struct fault *fault);
/* Undoes all that is there of them. */
int mounts_unmount(const char *directory, struct fault *fault);

#endif
