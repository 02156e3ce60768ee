/* The host's directory with every volume of the zone's containers. */
#ifndef BOOT_SHARED_H
#define BOOT_SHARED_H

#include <stdbool.h>

#define SHARED_DIRECTORY "/run/xenpod/shared"

/* `source` is XENPOD_SHARED: "vchan" (a server of the host, mounted on the host's request MountShared), "fd:<number>"
 * (a mount to attach now), or "" for no shared directory.  -1 with a log line. */
int shared_prepare(const char *source);
/* Whether a server has to be mounted. */
bool shared_is_served(void);
/* Whether the zone has a shared directory. */
bool shared_exists(void);

#endif
