/* What another kernel than the host's brings along: a squashfs with modules/ and firmware/. */
#ifndef ADDONS_H
#define ADDONS_H

#define ADDONS_DIRECTORY "/run/xenpod/addons"

/* `disk` is XENPOD_ADDONS: the disk's name ("xvdzz"), or "" for none.  Mounts it, loads what a zone needs, and tells
 * the kernel where its firmware is.  -1 with a line on the console. */
int addons_mount(const char *disk);

#endif
