/* Prepares the guest: the first work of its first process.  Each step returns -1 with a log line. */
#ifndef BOOT_BOOT_H
#define BOOT_BOOT_H

#include <stdbool.h>

int boot_root(void);
int boot_mounts(void);
/* Ensures that descriptors 0 to 2 exist, and that writes to a stuck console do not block. */
int boot_console(void);
/* Loads the modules of the initramfs; modules for a scratch disk only with `scratch`. */
int boot_modules(bool scratch);
/* Mounts the control groups: version 2 if it has the memory controller, else version 1. */
int boot_cgroups(void);
int boot_directories(void);
/* Needs the modules of all sources. */
int boot_devices(void);

#endif
