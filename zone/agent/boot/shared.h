/* The host's directory that holds every volume of the zone's containers. */
#ifndef BOOT_SHARED_H
#define BOOT_SHARED_H

#define SHARED_DIRECTORY "/run/xenpod/shared"

/* `source` is XENPOD_SHARED: "9p:<tag>", "fd:<number>" (a mount to attach), or "" for no such directory.
 * -1 with a log line. */
int shared_mount(const char *source);

#endif
