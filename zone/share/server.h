/* A 9P2000.L server of one directory for one client.
 *
 * The root of this process is that directory.  Each name of a client is one component, looked up by openat(2) from a
 * descriptor, and symbolic links are never followed: they are the client's to resolve.  Files are found again by
 * their descriptor, never by a path.  Requests are answered one after another. */
#ifndef SHARE_SERVER_H
#define SHARE_SERVER_H

#include <stdint.h>

#include "fids.h"
#include "wire.h"

struct call {
	struct reader in;
	struct writer out;
	uint32_t msize;
};

/* Answers a request: fills in `out` and returns 0, or returns an errno.  A request that it finds broken ends the
 * session. */
typedef int handler(struct call *call);

/* Before the first request.  `proc` is a descriptor of this process's /proc/self/fd. */
void server_open(int proc);
/* Answers the request of `length` bytes in `in`.  The length of the reply; 0: what came is no 9P, the session is
 * over.  `msize` is the largest message, and changes with Tversion. */
size_t server_answer(const uint8_t *in, size_t length, uint8_t *out, uint32_t *msize);

/* Of the handlers, each in a file of its kind. */
int find(struct call *call, struct fid **fid);
int find_open(struct call *call, struct fid **fid);
/* Opens the file of an O_PATH descriptor itself; -1 with errno.  Only directories and regular files can be opened. */
int reopen(int path, int flags);
/* Descriptors of this process as names in it. */
extern int proc_fds;
struct fd_name {
	char text[16];
};
struct fd_name fd_name(int fd);
/* A component of a path, and nothing else: EINVAL otherwise. */
int get_name(struct call *call, char name[NAME_LONGEST + 1]);
void put_file(struct writer *out, const struct stat *file);
uint64_t file_number(const struct stat *file);

handler statfs_file, walk, attach, readlink_file, getattr; /* look.c */
handler setattr, lcreate, symlink_at, mknod_at, mkdir_at, link_at, rename_at, unlink_at; /* change.c */
handler lopen, read_file, write_file, readdir_at, fsync_file, lock, getlock; /* data.c */
handler xattrwalk, xattrcreate; /* xattr.c */
int xattr_read(struct call *call, struct xattr *xattr, uint64_t offset, uint32_t count);
int xattr_write(struct call *call, struct xattr *xattr, uint64_t offset, uint32_t count);
/* Sets what was written; an errno. */
int xattr_finish(struct fid *fid);

#endif
