/* The host's directory that holds every volume of the zone's containers. */
#ifndef BOOT_SHARED_H
#define BOOT_SHARED_H

#include <stdbool.h>

#define SHARED_DIRECTORY "/run/xenpod/shared"

/* `source` is XENPOD_SHARED: "vchan" (a server of the host's is mounted once the host asks for it: MountShared),
 * "fd:<number>" (a mount to attach now), or "" for no such directory.  -1 with a log line. */
int shared_prepare(const char *source);
/* A server has to be mounted. */
bool shared_is_served(void);
/* There is a directory. */
bool shared_exists(void);

#endif
