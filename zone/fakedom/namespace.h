#ifndef NAMESPACE_H
#define NAMESPACE_H

#include "reason.h"

/* Opens the mounts of a mount namespace, by the path of that, as one tree for move_mount.  What is mounted there later
 * appears in the tree too, and never the other way round.  The caller must have a single thread. */
int namespace_mounts(const char *shared, int *tree, struct reason *reason);

#endif
