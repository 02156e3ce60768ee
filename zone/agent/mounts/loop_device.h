/* Loop devices: a file of the zone as a block device, which frees itself when it is unmounted. */
#ifndef MOUNTS_LOOP_DEVICE_H
#define MOUNTS_LOOP_DEVICE_H

#include <stddef.h>

#include "sys/fault.h"

/* Takes a free device for the file (a descriptor), and returns a descriptor of it, which the caller closes once it is
 * mounted.  Its name is written to `path`.  -1 with the fault. */
int loop_device_take(int file, char *path, size_t size, struct fault *fault);
/* Removes the name, where it was made here. */
void loop_device_forget_name(const char *path);

#endif
