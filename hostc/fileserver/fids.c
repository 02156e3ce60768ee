/* All memory is allocated at the start: no client can make this process grow. */
#include "fids.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { BUCKETS = 4096 };

static struct fid all[FIDS_MAX];
static struct fid *free_fids;
static size_t fresh; /* all[fresh] and above were never used */
static struct fid *buckets[BUCKETS];
static struct xattr xattrs[XATTRS_MAX];
static bool taken[XATTRS_MAX];

static struct fid **bucket(uint32_t number)
{
	return &buckets[(number * 2654435761u) >> 20];
}

struct fid *fid_find(uint32_t number)
{
	struct fid *fid = *bucket(number);

	while (fid && fid->number != number)
		fid = fid->next;
	return fid;
}

static struct fid *allocate(void)
{
	struct fid *fid = free_fids;

	if (fid)
		free_fids = fid->next;
	else if (fresh < FIDS_MAX)
		fid = &all[fresh++];
	return fid;
}

struct fid *fid_add(uint32_t number, uint32_t uid, int path)
{
	struct fid *fid = NULL;
	struct fid **place = bucket(number);

	errno = EBADF;
	if (!fid_find(number)) {
		fid = allocate();
		errno = EMFILE;
	}
	if (!fid) {
		int error = errno;

		close(path);
		errno = error;
		return NULL;
	}
	*fid = (struct fid){ .number = number, .uid = uid, .path = path, .open = -1, .next = *place };
	*place = fid;
	return fid;
}

void fid_move(struct fid *fid, int path)
{
	close(fid->path);
	fid->path = path;
}

void fid_drop(struct fid *fid)
{
	struct fid **place = bucket(fid->number);

	while (*place != fid)
		place = &(*place)->next;
	*place = fid->next;
	close(fid->path);
	if (fid->open >= 0)
		close(fid->open);
	if (fid->xattr)
		xattr_give(fid->xattr);
	fid->next = free_fids;
	free_fids = fid;
}

void fids_drop_all(void)
{
	for (size_t i = 0; i < BUCKETS; i++)
		while (buckets[i])
			fid_drop(buckets[i]);
}

struct xattr *xattr_take(void)
{
	for (size_t i = 0; i < XATTRS_MAX; i++)
		if (!taken[i]) {
			taken[i] = true;
			memset(&xattrs[i], 0, offsetof(struct xattr, value));
			return &xattrs[i];
		}
	errno = EMFILE;
	return NULL;
}

void xattr_give(struct xattr *xattr)
{
	taken[xattr - xattrs] = false;
}
