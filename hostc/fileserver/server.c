#include "server.h"

#include <errno.h>
#include <string.h>

#include "handlers.h"

void server_open(int proc)
{
	proc_fds = proc;
}

static int version(struct call *call)
{
	uint32_t msize = get32(&call->in);
	char text[32];
	const char *answer = "9P2000.L";

	get_text(&call->in, text, sizeof(text));
	if (msize < MSIZE_MIN) {
		call->in.broken = true;
		return 0;
	}
	fids_drop_all();
	if (strcmp(text, answer) != 0)
		answer = "unknown";
	call->msize = msize < MSIZE_MAX ? msize : MSIZE_MAX;
	put32(&call->out, call->msize);
	put_text(&call->out, answer, strlen(answer));
	return 0;
}

/* The request to be flushed has been answered already. */
static int flush(struct call *call)
{
	get16(&call->in);
	return 0;
}

static int clunk(struct call *call)
{
	struct fid *fid;
	int error = find_fid(call, &fid);

	if (error)
		return error;
	if (fid->xattr)
		error = xattr_finish(fid);
	fid_drop(fid);
	return error;
}

/* Refused: a client of 9P2000.L has Tunlinkat.  The fid is gone in any case. */
static int remove_fid(struct call *call)
{
	struct fid *fid;
	int error = find_fid(call, &fid);

	if (!error)
		fid_drop(fid);
	return error ? error : EOPNOTSUPP;
}

static handler *const handlers[] = {
	[T_STATFS] = statfs_file,
	[T_LOPEN] = lopen,
	[T_LCREATE] = lcreate,
	[T_SYMLINK] = symlink_at,
	[T_MKNOD] = mknod_at,
	[T_READLINK] = readlink_file,
	[T_GETATTR] = getattr,
	[T_SETATTR] = setattr,
	[T_XATTRWALK] = xattrwalk,
	[T_XATTRCREATE] = xattrcreate,
	[T_READDIR] = readdir_at,
	[T_FSYNC] = fsync_file,
	[T_LOCK] = lock,
	[T_GETLOCK] = getlock,
	[T_LINK] = link_at,
	[T_MKDIR] = mkdir_at,
	[T_RENAMEAT] = rename_at,
	[T_UNLINKAT] = unlink_at,
	[T_VERSION] = version,
	[T_ATTACH] = attach,
	[T_FLUSH] = flush,
	[T_WALK] = walk,
	[T_READ] = read_file,
	[T_WRITE] = write_file,
	[T_CLUNK] = clunk,
	[T_REMOVE] = remove_fid,
};

size_t server_answer(const uint8_t *in, size_t length, uint8_t *out, uint32_t *msize)
{
	struct call call = { { in + 4, length - 4, false }, { out, HEADER }, *msize };
	uint8_t type = get8(&call.in);
	uint16_t tag = get16(&call.in);
	handler *answer = type < sizeof(handlers) / sizeof(handlers[0]) ? handlers[type] : NULL;
	int error = answer ? answer(&call) : EOPNOTSUPP;
	struct writer header = { out, 0 };

	if (call.in.broken)
		return 0;
	*msize = call.msize;
	if (error) {
		call.out.length = HEADER;
		put32(&call.out, (uint32_t)error);
	}
	put32(&header, (uint32_t)call.out.length);
	put8(&header, error ? R_LERROR : (uint8_t)(type + 1));
	put16(&header, tag);
	return call.out.length;
}
