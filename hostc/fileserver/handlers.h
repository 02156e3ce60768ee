/* The handlers of requests, grouped by file. */
#ifndef FILESERVER_HANDLERS_H
#define FILESERVER_HANDLERS_H

#include <sys/stat.h>

#include "call.h"

/* Answers a request: fills in `out` and returns 0, or returns an errno.  A broken request ends the session. */
typedef int handler(struct call *call);

handler statfs_file, walk, attach, readlink_file, getattr; /* look.c */
handler setattr, lcreate, symlink_at, mknod_at, mkdir_at, link_at, rename_at, unlink_at; /* change.c */
handler lopen, read_file, write_file, readdir_at, fsync_file, lock, getlock; /* data.c */
handler xattrwalk, xattrcreate; /* xattr.c */

/* look.c */
void put_file(struct writer *out, const struct stat *file);
uint64_t file_number(const struct stat *file);
/* xattr.c */
int xattr_read(struct call *call, struct xattr *xattr, uint64_t offset, uint32_t count);
int xattr_write(struct call *call, struct xattr *xattr, uint64_t offset, uint32_t count);
/* Sets the written value; returns 0 or an errno. */
int xattr_finish(struct fid *fid);

#endif
