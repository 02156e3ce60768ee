/* Takes from this process what serving files does not need. */
#ifndef FILESERVER_CONFINE_H
#define FILESERVER_CONFINE_H

#include "common/reason.h"

/* Makes a copy of `mounts`, a descriptor of a mount namespace, all that this process sees of files: what is mounted in
 * that later appears in the copy, and never the other way round.  `proc` becomes a descriptor of its own /proc/self/fd.
 * This is the first process of its pid namespace, and has one thread. */
int confine_view(int mounts, int *proc, struct reason *reason);
/* The rest: no descriptors but 0 to 2 and `keep`, limits, no capability but those over files' owners and modes, in a
 * user namespace of its own, and no system call but those of the server. */
int confine_rights(const int keep[2], struct reason *reason);

#endif
