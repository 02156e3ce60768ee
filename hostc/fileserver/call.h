/* A request in progress, and the common steps of handlers. */
#ifndef FILESERVER_CALL_H
#define FILESERVER_CALL_H

#include <stdint.h>

#include "fids.h"
#include "wire.h"

struct call {
	struct reader in;
	struct writer out;
	uint32_t msize;
};

/* Finds the fid that a request names: 0, or EBADF. */
int find_fid(struct call *call, struct fid **fid);
/* Finds a fid with an open file or an extended attribute. */
int find_open_fid(struct call *call, struct fid **fid);
/* Opens the file of an O_PATH descriptor; -1 with errno.  Only directories and regular files can be opened. */
int reopen(int path, int flags);
/* /proc/self/fd, and the names of this process's descriptors in it. */
extern int proc_fds;
struct fd_name {
	char text[16];
};
struct fd_name fd_name(int fd);
/* Reads a single component of a path; EINVAL otherwise. */
int get_name(struct call *call, char name[NAME_LONGEST + 1]);

#endif
