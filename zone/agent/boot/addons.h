/* The addons of a kernel that is not the host's: a squashfs with modules/ and firmware/. */
#ifndef BOOT_ADDONS_H
#define BOOT_ADDONS_H

#include <stdbool.h>

#define ADDONS_DIRECTORY "/run/xenpod/addons"

/* `disk` is XENPOD_ADDONS: a disk's name ("xvdzz"), or "" for none.  Mounts the disk, loads the modules that a zone
 * needs, and tells the kernel its firmware path.  `scratch`: the zone will have a scratch disk.  -1 with a log line. */
int addons_mount(const char *disk, bool scratch);

#endif
