/* Prepares the guest as its first process must, before anything else.  Each step returns -1 with a log line. */
#ifndef BOOT_BOOT_H
#define BOOT_BOOT_H

#include <stdbool.h>

int boot_root(void);
int boot_mounts(void);
/* Descriptors 0 to 2 exist, and writing to a console that is stuck does not block. */
int boot_console(void);
/* Loads the modules of the initramfs; those for a scratch disk only where there will be one. */
int boot_modules(bool scratch);
/* Mounts the control groups: version 2 where it has the memory controller, else version 1. */
int boot_cgroups(void);
int boot_directories(void);
/* Needs the modules of all sources. */
int boot_devices(void);

#endif
