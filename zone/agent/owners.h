/* Owners of a tree, changed one by one to what they are in the pod's user namespace. */
#ifndef OWNERS_H
#define OWNERS_H

#include "fault.h"

/* For a process of its own: it changes its directory and takes its time.  What a change of owner takes away (set-id
 * bits, file capabilities) is put back. */
int owners_change(const char *root, struct fault *fault);

#endif
