/* Drops all rights that a file server does not need. */
#ifndef FILESERVER_CONFINE_H
#define FILESERVER_CONFINE_H

#include "common/reason.h"

/* Limits this process's view of files to a copy of `mounts`, a descriptor of a mount namespace.  Later mounts propagate
 * to the copy, but not back.  `proc` becomes a descriptor of the process's own /proc/self/fd.  The caller is the first
 * process of its pid namespace, and has one thread. */
int confine_view(int mounts, int *proc, struct reason *reason);
/* Drops the remaining rights: leaves descriptors 0 to 2 and `keep`, limits, the capabilities over files' owners and
 * modes in a new user namespace, and the server's system calls. */
int confine_rights(const int keep[2], struct reason *reason);

#endif
