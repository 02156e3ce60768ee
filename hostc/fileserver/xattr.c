/* Extended attributes: a fid is opened on an attribute, read or written like a file, and clunked. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "handlers.h"

/* Reads the value; without a name, the list of names.  0 or an errno. */
static int load(int path, struct xattr *xattr)
{
	int fd = reopen(path, O_RDONLY);
	ssize_t n;
	int error;

	if (fd < 0)
		return errno == EPERM ? EOPNOTSUPP : errno;
	n = *xattr->name ? fgetxattr(fd, xattr->name, xattr->value, XATTR_MAX) :
			   flistxattr(fd, (char *)xattr->value, XATTR_MAX);
	error = errno;
	close(fd);
	if (n < 0)
		return error;
	xattr->size = (size_t)n;
	return 0;
}

int xattrwalk(struct call *call)
{
	struct fid *fid, *new;
	int error = find_fid(call, &fid);
	uint32_t number = get32(&call->in);
	struct xattr *xattr;
	char name[XATTR_NAME];
	int path;

	get_text(&call->in, name, sizeof(name));
	if (call->in.broken || error)
		return error;
	xattr = xattr_take();
	if (!xattr)
		return errno;
	strcpy(xattr->name, name);
	error = load(fid->path, xattr);
	path = error ? -1 : fcntl(fid->path, F_DUPFD_CLOEXEC, 0);
	new = path < 0 ? NULL : fid_add(number, fid->uid, path);
	if (!new) {
		error = error ? error : errno;
		xattr_give(xattr);
		return error;
	}
	new->xattr = xattr;
	put64(&call->out, xattr->size);
	return 0;
}

int xattrcreate(struct call *call)
{
	struct fid *fid;
	int error = find_fid(call, &fid);
	struct xattr *xattr;
	char name[XATTR_NAME];
	uint64_t size;
	uint32_t flags;

	get_text(&call->in, name, sizeof(name));
	size = get64(&call->in);
	flags = get32(&call->in);
	if (call->in.broken || error)
		return error;
	if (fid->xattr || fid->open >= 0)
		return EBADF;
	if (size > XATTR_MAX)
		return E2BIG;
	xattr = xattr_take();
	if (!xattr)
		return errno;
	strcpy(xattr->name, name);
	xattr->size = (size_t)size;
	xattr->flags = (int)(flags & (XATTR_CREATE | XATTR_REPLACE));
	xattr->writing = 1;
	fid->xattr = xattr;
	return 0;
}

int xattr_read(struct call *call, struct xattr *xattr, uint64_t offset, uint32_t count)
{
	size_t left = xattr->writing || offset > xattr->size ? 0 : xattr->size - (size_t)offset;

	count = count < left ? count : (uint32_t)left;
	put32(&call->out, count);
	memcpy(call->out.start + call->out.length, xattr->value + (left ? offset : 0), count);
	call->out.length += count;
	return 0;
}

int xattr_write(struct call *call, struct xattr *xattr, uint64_t offset, uint32_t count)
{
	const uint8_t *data = get_bytes(&call->in, count);

	if (!data)
		return 0;
	if (!xattr->writing || offset != xattr->written || count > xattr->size - xattr->written)
		return EINVAL;
	memcpy(xattr->value + xattr->written, data, count);
	xattr->written += count;
	put32(&call->out, count);
	return 0;
}

/* An empty value removes the attribute: Linux's client removes this way. */
int xattr_finish(struct fid *fid)
{
	const struct xattr *xattr = fid->xattr;
	int fd, result, error;

	if (!xattr->writing)
		return 0;
	if (xattr->written != xattr->size)
		return EINVAL;
	fd = reopen(fid->path, O_RDONLY);
	if (fd < 0)
		return errno == EPERM ? EOPNOTSUPP : errno;
	result = xattr->size || !(xattr->flags & XATTR_REPLACE) ?
			 fsetxattr(fd, xattr->name, xattr->value, xattr->size, xattr->flags) :
			 fremovexattr(fd, xattr->name);
	error = errno;
	close(fd);
	return result < 0 ? error : 0;
}
