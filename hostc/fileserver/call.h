/* A request that is being answered, and the steps that handlers have in common. */
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

/* The fid that a request names: 0, or EBADF. */
int find_fid(struct call *call, struct fid **fid);
/* A fid with an open file or an extended attribute. */
int find_open_fid(struct call *call, struct fid **fid);
/* Opens the file of an O_PATH descriptor itself; -1 with errno.  Only directories and regular files can be opened. */
int reopen(int path, int flags);
/* /proc/self/fd, and descriptors of this process as names in it. */
extern int proc_fds;
struct fd_name {
	char text[16];
};
struct fd_name fd_name(int fd);
/* A component of a path, and nothing else: EINVAL otherwise. */
int get_name(struct call *call, char name[NAME_LONGEST + 1]);

#endif
