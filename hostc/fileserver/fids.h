/* What a client has in hand: its numbers (fids) and what they stand for. */
#ifndef FILESERVER_FIDS_H
#define FILESERVER_FIDS_H

#include <stddef.h>
#include <stdint.h>

enum {
	FIDS_MAX = 16384,
	XATTR_MAX = 65536,
	XATTRS_MAX = 16, /* extended attributes under way at once */
	XATTR_NAME = 256,
};

/* The value of an extended attribute: one that is read, or one that is written and set when its fid is clunked. */
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
	uint32_t uid; /* of whom the client acts for: new files are this user's */
	int path; /* O_PATH: a file, whatever its name becomes */
	int open; /* for reading and writing; -1 */
	struct xattr *xattr;
	struct fid *next;
};

/* NULL: there is none. */
struct fid *fid_find(uint32_t number);
/* Adds one, which takes over the descriptor.  NULL with errno: there is one already (EBADF), or there are too many
 * (EMFILE); the descriptor is then closed. */
struct fid *fid_add(uint32_t number, uint32_t uid, int path);
/* Gives it another file. */
void fid_move(struct fid *fid, int path);
void fid_drop(struct fid *fid);
void fids_drop_all(void);
/* A free one, or NULL with errno EMFILE. */
struct xattr *xattr_take(void);
void xattr_give(struct xattr *xattr);

#endif
