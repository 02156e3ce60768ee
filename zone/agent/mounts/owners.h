/* Maps the owners of a tree, file by file, into the pod's user namespace. */
#ifndef MOUNTS_OWNERS_H
#define MOUNTS_OWNERS_H

#include "sys/fault.h"

/* Runs in a separate process, because it changes its directory and takes long.  Restores attributes that a change of
 * owner clears: set-id bits and file capabilities. */
int owners_change(const char *root, struct fault *fault);

#endif
