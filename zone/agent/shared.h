/* The directory of the host's that every volume of the zone's containers is in. */
#ifndef SHARED_H
#define SHARED_H

#define SHARED_DIRECTORY "/run/xenpod/shared"

/* `how` is XENPOD_SHARED: 9p:<tag>, fd:<number> (a mount to attach), or "" for no such directory.
 * -1 with a line on the console. */
int shared_mount(const char *how);

#endif
