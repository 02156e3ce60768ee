/* Makes empty ext4 file systems: a zone's scratch disk, and directories on it that have a limit.  They have no journal,
 * since none outlives its zone. */
#ifndef MOUNTS_EXT4_H
#define MOUNTS_EXT4_H

#include <stdint.h>

/* The size of a file system whose files can take `bytes`, up to 2 % less. */
uint64_t ext4_size_for(uint64_t bytes);
/* Writes one to a file or a device of `bytes`, which must read as zeros.  -1 with errno: EFBIG, ENOSPC (too small), or
 * that of a write. */
int ext4_format(int fd, uint64_t bytes);

#endif
