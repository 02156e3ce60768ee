#ifndef NAMESPACE_H
#define NAMESPACE_H

#include "common/reason.h"

/* Enters a mount namespace by its path, and opens its mounts as one tree for move_mount.  Later mounts in the namespace
 * propagate to the tree, but not back.  The caller must have a single thread. */
int namespace_enter(const char *shared, int *tree, struct reason *reason);

#endif
