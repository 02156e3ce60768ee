#ifndef NAMESPACE_H
#define NAMESPACE_H

#include "reason.h"

/* The mounts of the mount namespace at the path `shared`, as one tree for move_mount: what is mounted there
 * later appears in the tree too, and never the other way round.  The caller must have one thread. */
int namespace_mounts(const char *shared, int *tree, struct reason *reason);

#endif
