/* Finding files and their attributes. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "handlers.h"

enum {
	DEVICES = 1024,
	NOBODY = 65534,
	BASIC = 0x7ff, /* of Rgetattr: all but the birth time, the generation and the data's version */
};

/* A client identifies a file by one number, the host by two: the upper bits become the file system's index in this
 * table.  If the table is full, files of further file systems may look equal. */
uint64_t file_number(const struct stat *file)
{
	static dev_t devices[DEVICES];
	static uint64_t count;
	uint64_t i = 0;

	while (i < count && devices[i] != file->st_dev)
		i++;
	if (i == count && count < DEVICES)
		devices[count++] = file->st_dev;
	return (uint64_t)file->st_ino ^ i << 48;
}

void put_file(struct writer *out, const struct stat *file)
{
	put_qid(out, file->st_mode, file_number(file));
}

int attach(struct call *call)
{
	char name[NAME_LONGEST + 1], tree[PATH_LONGEST + 1];
	uint32_t number = get32(&call->in);
	struct stat file;
	uint32_t uid;
	int root;

	get32(&call->in); /* afid: no authentication */
	get_text(&call->in, name, sizeof(name));
	get_text(&call->in, tree, sizeof(tree)); /* only one tree exists */
	uid = get32(&call->in);
	if (call->in.broken)
		return 0;
	root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return errno;
	if (fstat(root, &file) < 0) {
		close(root);
		return EIO;
	}
	if (!fid_add(number, uid == UINT32_MAX ? NOBODY : uid, root))
		return errno;
	put_file(&call->out, &file);
	return 0;
}

/* Follows one name and closes the descriptor `from`.  -1 with errno. */
static int step(int from, const char *name, struct stat *file)
{
	int to = openat(from, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	int error = errno;

	close(from);
	if (to >= 0 && fstat(to, file) < 0) {
		error = errno;
		close(to);
		to = -1;
	}
	errno = error;
	return to;
}

/* Follows the names as far as possible.  -1 with errno: even the first failed. */
static int follow(struct call *call, int from, uint16_t names, uint16_t *done)
{
	char name[NAME_LONGEST + 1];
	struct stat file;
	int error = 0;

	for (*done = 0; *done < names && !error; (*done)++) {
		error = get_name(call, name);
		if (call->in.broken)
			break;
		if (!error) {
			from = step(from, name, &file);
			error = from < 0 ? errno : 0;
		}
		if (error)
			break;
		put_file(&call->out, &file);
	}
	if (error && from >= 0) {
		close(from);
		from = -1;
	}
	errno = error;
	return from;
}

int walk(struct call *call)
{
	struct fid *fid, *new;
	int error = find_fid(call, &fid);
	uint32_t number = get32(&call->in);
	uint16_t names = get16(&call->in), done = 0;
	size_t count_at = call->out.length;
	int path;

	if (call->in.broken || names > WALK_MAX) {
		call->in.broken = true;
		return 0;
	}
	if (error)
		return error;
	new = fid_find(number);
	if (new && (new != fid || fid->open >= 0 || fid->xattr))
		return EBADF;
	path = fcntl(fid->path, F_DUPFD_CLOEXEC, 0);
	if (path < 0)
		return errno;
	put16(&call->out, 0);
	path = follow(call, path, names, &done);
	if (path < 0 && done == 0)
		return errno;
	call->out.start[count_at] = (uint8_t)done;
	if (path < 0)
		return 0; /* a part of the way: no new fid */
	if (new)
		fid_move(fid, path);
	else if (!fid_add(number, fid->uid, path))
		return errno;
	return 0;
}

int readlink_file(struct call *call)
{
	char target[PATH_LONGEST + 1];
	struct fid *fid;
	int error = find_fid(call, &fid);
	ssize_t length;

	if (error)
		return error;
	length = readlinkat(fid->path, "", target, sizeof(target));
	if (length < 0)
		return errno == ENOENT ? EINVAL : errno;
	if (length == sizeof(target))
		return ENAMETOOLONG;
	put_text(&call->out, target, (size_t)length);
	return 0;
}

static void put_time(struct writer *out, struct timespec time)
{
	put64(out, (uint64_t)time.tv_sec);
	put64(out, (uint64_t)time.tv_nsec);
}

/* The kernel's encoding in 32 bits. */
static uint64_t device(dev_t number)
{
	uint64_t major = number >> 8 & 0xfff, minor = (number & 0xff) | (number >> 12 & 0xfff00);

	return (minor & 0xff) | major << 8 | (minor & ~0xffull) << 12;
}

int getattr(struct call *call)
{
	struct writer *out = &call->out;
	uint64_t block = (call->msize - 4096) & ~4095ull; /* the block size of programs' reads: one request each */
	struct fid *fid;
	int error = find_fid(call, &fid);
	struct stat file;

	get64(&call->in);
	if (error)
		return error;
	if (fstat(fid->path, &file) < 0)
		return errno;
	put64(out, BASIC);
	put_file(out, &file);
	put32(out, file.st_mode);
	put32(out, file.st_uid);
	put32(out, file.st_gid);
	put64(out, file.st_nlink);
	put64(out, device(file.st_rdev));
	put64(out, (uint64_t)file.st_size);
	put64(out, block > (uint64_t)file.st_blksize ? block : (uint64_t)file.st_blksize);
	put64(out, (uint64_t)file.st_blocks);
	put_time(out, file.st_atim);
	put_time(out, file.st_mtim);
	put_time(out, file.st_ctim);
	for (int i = 0; i < 4; i++)
		put64(out, 0);
	return 0;
}

int statfs_file(struct call *call)
{
	struct writer *out = &call->out;
	struct fid *fid;
	int error = find_fid(call, &fid);
	struct statfs system;
	uint64_t id = 0;

	if (error)
		return error;
	if (fstatfs(fid->path, &system) < 0)
		return errno;
	memcpy(&id, &system.f_fsid, sizeof(system.f_fsid) < sizeof(id) ? sizeof(system.f_fsid) : sizeof(id));
	put32(out, (uint32_t)system.f_type);
	put32(out, (uint32_t)system.f_bsize);
	put64(out, system.f_blocks);
	put64(out, system.f_bfree);
	put64(out, system.f_bavail);
	put64(out, system.f_files);
	put64(out, system.f_ffree);
	put64(out, id);
	put32(out, (uint32_t)system.f_namelen);
	return 0;
}
