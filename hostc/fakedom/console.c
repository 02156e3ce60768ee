/* console.log holds at most 256 KiB: a full log loses its older half. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "fakedom.h"

enum { LOG_MAX = 256 * 1024 /* bytes */, LOG_TAIL = LOG_MAX / 2, CHUNK = 4096 };

static char chunk[CHUNK];

int console_open(int directory)
{
	return openat(directory, "console.log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static void drop_older(int log)
{
	off_t end = lseek(log, 0, SEEK_END);
	off_t from = end - LOG_TAIL;
	off_t to = 0;
	ssize_t n;
	int flags = fcntl(log, F_GETFL);

	/* While O_APPEND is set, pwrite(2) appends and ignores its offset. */
	if (flags < 0 || fcntl(log, F_SETFL, flags & ~O_APPEND) < 0)
		return;
	while ((n = pread(log, chunk, sizeof(chunk), from)) > 0 && pwrite(log, chunk, (size_t)n, to) == n) {
		from += n;
		to += n;
	}
	if (ftruncate(log, to) == 0)
		(void)fcntl(log, F_SETFL, flags);
}

void console_take(int log, int pipe)
{
	ssize_t n = read(pipe, chunk, sizeof(chunk));
	ssize_t done = 0, written;

	while (done < n) {
		written = write(log, chunk + done, (size_t)(n - done));
		/* A full disk loses console text, but does not end the zone. */
		if (written < 0 && errno != EINTR)
			break;
		done += written > 0 ? written : 0;
	}
	if (lseek(log, 0, SEEK_END) > LOG_MAX - CHUNK)
		drop_older(log);
}
