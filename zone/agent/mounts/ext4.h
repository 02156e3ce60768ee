/* Makes empty ext4 file systems: a zone's scratch disk, and directories on it with a limit.  They have no journal,
 * because none outlives its zone. */
#ifndef MOUNTS_EXT4_H
#define MOUNTS_EXT4_H

#include <stdint.h>

/* The size of a file system with room for `bytes` of files, up to 2 % less. */
uint64_t ext4_size_for(uint64_t bytes);
/* Writes a file system to a file or device of `bytes`, which must read as zeros.  -1 with errno: EFBIG, ENOSPC (too
 * small), or the errno of a write. */
int ext4_format(int fd, uint64_t bytes);

#endif
