/* Requests that change files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include "handlers.h"

/* flags of Tsetattr (P9_ATTR_*) */
enum {
	SET_MODE = 1,
	SET_UID = 2,
	SET_GID = 4,
	SET_SIZE = 8,
	SET_ATIME = 0x10,
	SET_MTIME = 0x20,
	SET_ATIME_TO = 0x80,
	SET_MTIME_TO = 0x100,
};

enum {
	BITS = 07777,
	REMOVE_DIRECTORY = 0x200, /* of Tunlinkat */
};

/* New files belong to the client's user, even if the mount maps ids.  The capabilities of this process stay
 * (SECBIT_NO_SETUID_FIXUP). */
static void act_as(uint32_t uid, uint32_t gid)
{
	setfsgid(gid);
	setfsuid(uid);
}

/* The `result` of a call as act_as's user: 0 or an errno; then acts as root again. */
static int done(int result)
{
	int error = result < 0 ? errno : 0;

	act_as(0, 0);
	return error;
}

static int put_new(struct call *call, int directory, const char *name)
{
	struct stat file;

	if (fstatat(directory, name, &file, AT_SYMLINK_NOFOLLOW) < 0)
		return errno;
	put_file(&call->out, &file);
	return 0;
}

/* Opens an existing regular file.  Other files are not even opened: an open alone has effects on a pipe. */
static int open_there(int directory, const char *name, int flags)
{
	int path = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct stat file;
	int fd = -1, error;

	if (path < 0)
		return -1;
	if (fstat(path, &file) == 0) {
		errno = S_ISLNK(file.st_mode) ? ELOOP : S_ISDIR(file.st_mode) ? EISDIR : EPERM;
		if (S_ISREG(file.st_mode))
			fd = reopen(path, flags);
	}
	error = errno;
	close(path);
	errno = error;
	return fd;
}

static int create(int directory, const char *name, uint32_t flags, uint32_t mode)
{
	int passed = (int)(flags & (O_ACCMODE | O_TRUNC | O_APPEND | O_SYNC));
	int fixed = O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	int fd = openat(directory, name, passed | fixed, mode & BITS);

	return fd < 0 && errno == EEXIST && !(flags & O_EXCL) ? open_there(directory, name, passed) : fd;
}

int lcreate(struct call *call)
{
	char name[NAME_LONGEST + 1];
	struct fid *fid;
	int error = find_fid(call, &fid);
	int bad_name = get_name(call, name);
	uint32_t flags = get32(&call->in), mode = get32(&call->in), gid = get32(&call->in);
	struct stat file;
	int fd, path;

	if (call->in.broken || error || bad_name)
		return error ? error : bad_name;
	if (fid->open >= 0 || fid->xattr)
		return EBADF;
	act_as(fid->uid, gid);
	fd = create(fid->path, name, flags, mode);
	error = done(fd);
	if (error)
		return error;
	path = openat(proc_fds, fd_name(fd).text, O_PATH | O_CLOEXEC);
	if (path < 0 || fstat(fd, &file) < 0) {
		error = errno;
		close(fd);
		if (path >= 0)
			close(path);
		return error;
	}
	fid_move(fid, path);
	fid->open = fd;
	put_file(&call->out, &file);
	put32(&call->out, 0); /* iounit: as much as a message holds */
	return 0;
}

int mkdir_at(struct call *call)
{
	char name[NAME_LONGEST + 1];
	struct fid *fid;
	int error = find_fid(call, &fid);
	int bad_name = get_name(call, name);
	uint32_t mode = get32(&call->in), gid = get32(&call->in);

	if (call->in.broken || error || bad_name)
		return error ? error : bad_name;
	act_as(fid->uid, gid);
	error = done(mkdirat(fid->path, name, mode & BITS));
	return error ? error : put_new(call, fid->path, name);
}

int symlink_at(struct call *call)
{
	char name[NAME_LONGEST + 1], target[PATH_LONGEST + 1];
	struct fid *fid;
	int error = find_fid(call, &fid);
	int bad_name = get_name(call, name);
	uint32_t gid;

	get_text(&call->in, target, sizeof(target));
	gid = get32(&call->in);
	if (call->in.broken || error || bad_name)
		return error ? error : bad_name;
	act_as(fid->uid, gid);
	error = done(symlinkat(target, fid->path, name));
	return error ? error : put_new(call, fid->path, name);
}

/* Refuses devices: they would be the host's. */
int mknod_at(struct call *call)
{
	char name[NAME_LONGEST + 1];
	struct fid *fid;
	int error = find_fid(call, &fid);
	int bad_name = get_name(call, name);
	uint32_t mode = get32(&call->in), gid;

	get64(&call->in);
	gid = get32(&call->in);
	if (call->in.broken || error || bad_name)
		return error ? error : bad_name;
	if (!S_ISREG(mode) && !S_ISFIFO(mode) && !S_ISSOCK(mode))
		return EPERM;
	act_as(fid->uid, gid);
	error = done(mknodat(fid->path, name, mode & (S_IFMT | BITS), 0));
	return error ? error : put_new(call, fid->path, name);
}

int link_at(struct call *call)
{
	char name[NAME_LONGEST + 1];
	struct fid *directory, *fid;
	int error = find_fid(call, &directory);
	int missing = find_fid(call, &fid);
	int bad_name = get_name(call, name);

	if (call->in.broken || error || missing || bad_name)
		return error ? error : missing ? missing : bad_name;
	if (linkat(proc_fds, fd_name(fid->path).text, directory->path, name, AT_SYMLINK_FOLLOW) < 0)
		return errno;
	return 0;
}

int rename_at(struct call *call)
{
	char from[NAME_LONGEST + 1], to[NAME_LONGEST + 1];
	struct fid *source, *target;
	int error = find_fid(call, &source);
	int bad_from = get_name(call, from);
	int missing = find_fid(call, &target);
	int bad_to = get_name(call, to);

	if (call->in.broken || error || missing || bad_from || bad_to)
		return error ? error : missing ? missing : EINVAL;
	return renameat(source->path, from, target->path, to) < 0 ? errno : 0;
}

int unlink_at(struct call *call)
{
	char name[NAME_LONGEST + 1];
	struct fid *fid;
	int error = find_fid(call, &fid);
	int bad_name = get_name(call, name);
	uint32_t flags = get32(&call->in);

	if (call->in.broken || error || bad_name)
		return error ? error : bad_name;
	return unlinkat(fid->path, name, flags & REMOVE_DIRECTORY ? AT_REMOVEDIR : 0) < 0 ? errno : 0;
}

static int set_size(struct fid *fid, uint64_t size)
{
	int fd = fid->open, error;

	if (size > INT64_MAX)
		return EFBIG;
	if (fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
		return ftruncate(fd, (off_t)size) < 0 ? errno : 0;
	fd = reopen(fid->path, O_WRONLY);
	if (fd < 0)
		return errno;
	error = ftruncate(fd, (off_t)size) < 0 ? errno : 0;
	close(fd);
	return error;
}

static struct timespec new_time(struct call *call, uint32_t valid, uint32_t set, uint32_t set_to)
{
	uint64_t seconds = get64(&call->in), nanoseconds = get64(&call->in);

	if (!(valid & set))
		return (struct timespec){ 0, UTIME_OMIT };
	if (!(valid & set_to))
		return (struct timespec){ 0, UTIME_NOW };
	return (struct timespec){ (time_t)seconds, nanoseconds < 1000000000 ? (long)nanoseconds : 0 };
}

int setattr(struct call *call)
{
	struct fid *fid;
	int error = find_fid(call, &fid);
	uint32_t valid = get32(&call->in), mode = get32(&call->in);
	uint32_t uid = get32(&call->in), gid = get32(&call->in);
	uint64_t size = get64(&call->in);
	struct timespec times[2];

	times[0] = new_time(call, valid, SET_ATIME, SET_ATIME_TO);
	times[1] = new_time(call, valid, SET_MTIME, SET_MTIME_TO);
	if (call->in.broken || error)
		return error;
	if (valid & (SET_UID | SET_GID)) {
		uid = valid & SET_UID ? uid : UINT32_MAX;
		gid = valid & SET_GID ? gid : UINT32_MAX;
		if (fchownat(fid->path, "", uid, gid, AT_EMPTY_PATH) < 0)
			return errno;
	}
	/* After the owner: its change clears the set-user-ID bits. */
	if (valid & SET_MODE && fchmodat(proc_fds, fd_name(fid->path).text, mode & BITS, 0) < 0)
		return errno;
	if (valid & SET_SIZE)
		error = set_size(fid, size);
	if (!error && valid & (SET_ATIME | SET_MTIME))
		error = utimensat(proc_fds, fd_name(fid->path).text, times, 0) < 0 ? errno : 0;
	return error;
}
