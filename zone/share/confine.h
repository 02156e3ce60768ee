/* Takes from this process what serving files does not need. */
#ifndef SHARE_CONFINE_H
#define SHARE_CONFINE_H

#include "../fakedom/reason.h"

/* Makes `tree`, a descriptor of mounts, all that this process sees of files, in namespaces of its own.  `proc` becomes
 * a descriptor of its own /proc/self/fd.  It is the first process of its pid namespace, and has one thread. */
int confine_view(int tree, int *proc, struct reason *reason);
/* The rest: no descriptors but 0 to 2 and `keep`, limits, no capability but those over files' owners and modes, in a
 * user namespace of its own, and no system call but those of the server. */
int confine_rights(const int keep[2], struct reason *reason);

#endif
