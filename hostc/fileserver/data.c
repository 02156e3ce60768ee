/* Opening, reading, writing. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "handlers.h"

enum {
	DATA_AT = HEADER + 4, /* of Rread and Rreaddir, after the count */
	ENTRY = QID_SIZE + 8 + 1 + 2, /* of Rreaddir, without the name */
	UNLOCKED = 2, /* P9_LOCK_TYPE_UNLCK */
};

struct entry {
	uint64_t number;
	int64_t next;
	uint16_t length;
	uint8_t type;
	char name[];
};

int lopen(struct call *call)
{
	struct fid *fid;
	int error = find_fid(call, &fid);
	uint32_t flags = get32(&call->in) & (O_ACCMODE | O_TRUNC | O_APPEND | O_SYNC | O_DIRECTORY);
	struct stat file;

	if (call->in.broken || error)
		return error;
	if (fid->open >= 0 || fid->xattr)
		return EBADF;
	fid->open = reopen(fid->path, (int)flags);
	if (fid->open < 0 || fstat(fid->open, &file) < 0)
		return errno;
	put_file(&call->out, &file);
	put32(&call->out, 0); /* iounit: as much as a message holds */
	return 0;
}

/* Limits a count to the room of a reply. */
static uint32_t bounded(const struct call *call, uint32_t count)
{
	uint32_t room = call->msize - DATA_AT;

	return count < room ? count : room;
}

int read_file(struct call *call)
{
	struct fid *fid;
	int error = find_open_fid(call, &fid);
	uint64_t offset = get64(&call->in);
	uint32_t count = bounded(call, get32(&call->in));
	ssize_t n;

	if (call->in.broken || error)
		return error;
	if (fid->xattr)
		return xattr_read(call, fid->xattr, offset, count);
	n = pread(fid->open, call->out.start + DATA_AT, count, (off_t)offset);
	if (n < 0)
		return errno;
	put32(&call->out, (uint32_t)n);
	call->out.length += (size_t)n;
	return 0;
}

int write_file(struct call *call)
{
	struct fid *fid;
	int error = find_open_fid(call, &fid);
	uint64_t offset = get64(&call->in);
	uint32_t count = get32(&call->in);
	const uint8_t *data;
	ssize_t n;

	if (!error && fid->xattr)
		return xattr_write(call, fid->xattr, offset, count);
	data = get_bytes(&call->in, count);
	if (call->in.broken || error)
		return error;
	n = pwrite(fid->open, data, count, (off_t)offset);
	if (n < 0)
		return errno;
	put32(&call->out, (uint32_t)n);
	return 0;
}

/* Adds as many entries as fit. */
static void put_entries(struct call *call, const char *entries, size_t length, uint32_t room, struct stat *file)
{
	struct writer *out = &call->out;
	size_t at = 0;

	while (at < length) {
		const struct entry *entry = (const void *)(entries + at);
		size_t name = strlen(entry->name);

		if (out->length - DATA_AT + ENTRY + name > room)
			break;
		file->st_ino = entry->number;
		put_qid(out, (mode_t)DTTOIF(entry->type), file_number(file));
		put64(out, (uint64_t)entry->next);
		put8(out, entry->type);
		put_text(out, entry->name, name);
		at += entry->length;
	}
}

int readdir_at(struct call *call)
{
	static char entries[32768] __attribute__((aligned(8)));
	struct fid *fid;
	int error = find_open_fid(call, &fid);
	uint64_t offset = get64(&call->in);
	uint32_t room = bounded(call, get32(&call->in));
	size_t count_at = call->out.length;
	struct stat file;
	long n;

	if (call->in.broken || error)
		return error;
	if (fid->xattr || fstat(fid->open, &file) < 0 || !S_ISDIR(file.st_mode))
		return ENOTDIR;
	if (lseek(fid->open, (off_t)offset, SEEK_SET) < 0)
		return errno;
	n = syscall(SYS_getdents64, fid->open, entries, room < sizeof(entries) ? room : sizeof(entries));
	if (n < 0)
		return errno;
	put32(&call->out, 0);
	put_entries(call, entries, (size_t)n, room, &file);
	if (n > 0 && call->out.length == DATA_AT)
		return EINVAL; /* not even one entry fits; 0 entries would mean the end of the directory */
	patch32(call->out.start + count_at, (uint32_t)(call->out.length - DATA_AT));
	return 0;
}

int fsync_file(struct call *call)
{
	struct fid *fid;
	int error = find_open_fid(call, &fid);
	uint32_t data_only = get32(&call->in);

	if (error || fid->xattr)
		return error;
	return (data_only ? fdatasync(fid->open) : fsync(fid->open)) < 0 ? errno : 0;
}

/* The client's kernel has locked the file already, against all its users in this zone.  Others do not learn of the
 * lock. */
int lock(struct call *call)
{
	struct fid *fid;
	int error = find_fid(call, &fid);

	if (error)
		return error;
	put8(&call->out, 0);
	return 0;
}

int getlock(struct call *call)
{
	char client[NAME_LONGEST + 1];
	struct fid *fid;
	int error = find_fid(call, &fid);
	uint64_t start, length;
	uint32_t process;

	get8(&call->in);
	start = get64(&call->in);
	length = get64(&call->in);
	process = get32(&call->in);
	get_text(&call->in, client, sizeof(client));
	if (call->in.broken || error)
		return error;
	put8(&call->out, UNLOCKED);
	put64(&call->out, start);
	put64(&call->out, length);
	put32(&call->out, process);
	put_text(&call->out, client, strlen(client));
	return 0;
}
