/* A client's numbers (fids), and the files behind them. */
#ifndef FILESERVER_FIDS_H
#define FILESERVER_FIDS_H

#include <stddef.h>
#include <stdint.h>

enum {
	FIDS_MAX = 16384,
	XATTR_MAX = 65536,
	XATTRS_MAX = 16, /* most extended attributes under way at once */
	XATTR_NAME = 256,
};

/* The value of an extended attribute: either read, or written and then set when its fid is clunked. */
struct xattr {
	size_t size;
	size_t written;
	int writing;
	int flags;
	char name[XATTR_NAME];
	uint8_t value[XATTR_MAX];
};

struct fid {
	uint32_t number;
	uint32_t uid; /* the client's acting user: the owner of new files */
	int path; /* O_PATH: the file, even after a rename */
	int open; /* for reading and writing; -1: not open */
	struct xattr *xattr;
	struct fid *next;
};

/* NULL: no such fid. */
struct fid *fid_find(uint32_t number);
/* Adds a fid, which takes over the descriptor.  NULL with errno: the number is taken (EBADF), or too many fids
 * (EMFILE); the descriptor is then closed. */
struct fid *fid_add(uint32_t number, uint32_t uid, int path);
/* Gives a fid another file. */
void fid_move(struct fid *fid, int path);
void fid_drop(struct fid *fid);
void fids_drop_all(void);
/* A free xattr, or NULL with errno EMFILE. */
struct xattr *xattr_take(void);
void xattr_give(struct xattr *xattr);

#endif
