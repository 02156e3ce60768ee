/* Loop devices: a file of the zone as a block device that frees itself after the unmount. */
#ifndef MOUNTS_LOOP_DEVICE_H
#define MOUNTS_LOOP_DEVICE_H

#include <stddef.h>

#include "sys/fault.h"

/* Takes a free device for the file (a descriptor), and writes its name to `path`.  Returns a descriptor of the device;
 * the caller closes it after the mount.  -1 with the fault. */
int loop_device_take(int file, char *path, size_t size, struct fault *fault);
/* Removes the name, if it was made here. */
void loop_device_forget_name(const char *path);

#endif
