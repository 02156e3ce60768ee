/* lookup: looks up paths of the host for a caller that must not wait for their file systems.
 *
 * A file server that does not answer blocks its callers without end.  Therefore lookup is a separate process that its
 * caller can abandon.  The caller's socket (SOCK_SEQPACKET) is descriptor 0.  A request is
 *
 *   o PATH   what is there: symbolic links are followed, automounts made
 *   d PATH   the same; a directory is made if there is nothing, with those above it
 *   c        the descriptor that was found last, in a new copy of the mount namespace
 *   f        the same; the copy follows what the host mounts and unmounts from then on
 *   r PATH   a copy of a plain file, up to one byte more than READ_MAX: symbolic links are followed
 *   u LIST   make mounts of the last copy unbindable: each "<number> <path>", ended by a null character.  A mount
 *            hidden under another mount is skipped; so is a vanished mount, and the answer is then ENOENT
 *
 * without the first blank.  The answer is a number of errno and the type of a file, 0 for r and u, both as uint32_t.
 * If the number is 0 a descriptor comes along, for all but u: O_PATH, for r of a file in memory.  The process ends with
 * its caller's end of the socket. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct answer {
	uint32_t error;
	uint32_t mode;
};

struct place {
	int found; /* the last found; -1: none */
	int home; /* the mount namespace at the start of this process */
	bool away;
};

enum { REQUEST_MAX = 65536, READ_MAX = 1024 * 1024 };

static int find(const char *path)
{
	return open_tree(AT_FDCWD, path, OPEN_TREE_CLOEXEC);
}

/* mkdir -p.  The path is cut at each slash, and restored afterwards. */
static int make_directories(char *path)
{
	for (char *at = path + 1; *at; at++) {
		int made;

		if (*at != '/')
			continue;
		*at = '\0';
		made = mkdir(path, 0755);
		*at = '/';
		if (made < 0 && errno != EEXIST)
			return -1;
	}
	return mkdir(path, 0755);
}

static int find_or_make(char *path)
{
	int found = find(path);
	bool there;

	if (found >= 0 || errno != ENOENT)
		return found;
	there = make_directories(path) < 0;
	if (there && errno != EEXIST)
		return -1;
	found = find(path);
	/* A symbolic link to a missing file. */
	if (found < 0 && errno == ENOENT && there)
		errno = EEXIST;
	return found;
}

static int go_home(struct place *place)
{
	if (place->away && setns(place->home, CLONE_NEWNS) < 0)
		return -1;
	place->away = false;
	return 0;
}

/* A copied namespace moves the current directory to its copied mount: no path is looked up again. */
static int copy(struct place *place, bool follow)
{
	struct mount_attr alone = { .propagation = MS_PRIVATE };

	if (go_home(place) < 0 || fchdir(place->found) < 0 || unshare(CLONE_NEWNS) < 0)
		return -1;
	place->away = true;
	if (!follow && mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &alone, sizeof(alone)) < 0)
		return -1;
	return open_tree(AT_FDCWD, "", AT_EMPTY_PATH | OPEN_TREE_CLOEXEC);
}

/* ENOENT: the mount is gone. */
static int make_unbindable(uint64_t number, const char *path)
{
	struct mount_attr wanted = { .propagation = MS_UNBINDABLE };
	struct statx seen;
	int found = find(path);
	int result;

	if (found < 0)
		return -1;
	result = statx(found, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &seen);
	if (result == 0 && seen.stx_mnt_id == number) {
		result = mount_setattr(found, "", AT_EMPTY_PATH, &wanted, sizeof(wanted));
		/* EINVAL: the descriptor's mount is no longer mounted anywhere. */
		if (result < 0 && errno == EINVAL)
			errno = ENOENT;
	}
	close(found);
	return result;
}

/* 0, or an errno. */
static uint32_t make_all_unbindable(const char *list, const char *end)
{
	uint32_t gone = 0;

	for (; list < end; list += strlen(list) + 1) {
		char *blank;
		uint64_t number = strtoumax(list, &blank, 10);

		if (*blank != ' ')
			return EINVAL;
		if (make_unbindable(number, blank + 1) == 0)
			continue;
		if (errno != ENOENT)
			return (uint32_t)errno;
		gone = ENOENT;
	}
	return gone;
}

/* Opens a plain file for reading; other files are not even opened. */
static int open_plain(const char *path)
{
	int found = open(path, O_PATH | O_CLOEXEC);
	char again[sizeof("/proc/self/fd/") + 3 * sizeof(int)];
	struct stat seen;
	int opened;

	if (found < 0)
		return -1;
	snprintf(again, sizeof(again), "/proc/self/fd/%d", found);
	if (fstat(found, &seen) < 0) {
		opened = -1;
	} else if (!S_ISREG(seen.st_mode)) {
		errno = S_ISDIR(seen.st_mode) ? EISDIR : EINVAL;
		opened = -1;
	} else {
		opened = open(again, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	}
	close(found);
	return opened;
}

static int copy_all(int from, int to)
{
	char piece[16384];
	size_t left = READ_MAX + 1;

	while (left) {
		ssize_t got = read(from, piece, left < sizeof(piece) ? left : sizeof(piece));

		if (got <= 0)
			return (int)got;
		if (write(to, piece, (size_t)got) != got)
			return -1;
		left -= (size_t)got;
	}
	return 0;
}

/* Copies a plain file to memory: only this process writes to the copy, and no other process can block it. */
static int read_plain(const char *path)
{
	int from = open_plain(path);
	int to;

	if (from < 0)
		return -1;
	to = memfd_create("copy", MFD_CLOEXEC);
	if (to >= 0 && copy_all(from, to) < 0) {
		close(to);
		to = -1;
	}
	close(from);
	return to;
}

static int serve(struct place *place, char *request)
{
	char *path = request + 1;

	switch (*request) {
	case 'o':
		return go_home(place) < 0 ? -1 : find(path);
	case 'd':
		return go_home(place) < 0 ? -1 : find_or_make(path);
	case 'r':
		return go_home(place) < 0 ? -1 : read_plain(path);
	case 'c':
		return copy(place, false);
	case 'f':
		return copy(place, true);
	}
	errno = EINVAL;
	return -1;
}

/* The type of a file never changes: the kernel's cached attributes suffice. */
static int mode_of(int found, uint32_t *mode)
{
	struct statx seen;

	if (statx(found, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_TYPE, &seen) < 0)
		return -1;
	*mode = seen.stx_mode & S_IFMT;
	return 0;
}

/* descriptor: -1 for none. */
static int send_answer(struct answer answer, int descriptor)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr aligned;
	} control = { { 0 } };
	struct iovec data = { &answer, sizeof(answer) };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };

	if (descriptor >= 0) {
		control.aligned.cmsg_len = CMSG_LEN(sizeof(int));
		control.aligned.cmsg_level = SOL_SOCKET;
		control.aligned.cmsg_type = SCM_RIGHTS;
		memcpy(CMSG_DATA(&control.aligned), &descriptor, sizeof(int));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	return sendmsg(0, &message, MSG_NOSIGNAL) == (ssize_t)sizeof(answer) ? 0 : -1;
}

/* The descriptor of a file that was read is closed. */
static int answer_once(struct place *place, char *request)
{
	int found = serve(place, request);
	struct answer answer = { found < 0 ? (uint32_t)errno : 0, 0 };
	int result = send_answer(answer, found);

	if (found >= 0)
		close(found);
	return result;
}

static int answer_with(struct place *place, char *request)
{
	struct answer answer = { 0, 0 };
	int found = serve(place, request);
	int result;

	if (found < 0 || mode_of(found, &answer.mode) < 0) {
		answer.error = (uint32_t)errno;
		return send_answer(answer, -1);
	}
	result = send_answer(answer, found);
	/* The next copy is not made from a file in this copy. */
	if (place->away) {
		close(found);
		return result;
	}
	if (place->found >= 0)
		close(place->found);
	place->found = found;
	return result;
}

int main(void)
{
	static char request[REQUEST_MAX + 1];
	struct place place = { .found = -1, .away = false };
	ssize_t length;
	int result = 0;

	place.home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (place.home < 0)
		return EXIT_FAILURE;
	while (result == 0 && (length = recv(0, request, REQUEST_MAX, 0)) > 0) {
		request[length] = '\0';
		if (*request == 'u' && place.away) {
			struct answer answer = { make_all_unbindable(request + 1, request + length), 0 };

			result = send_answer(answer, -1);
		} else if (*request == 'r') {
			result = answer_once(&place, request);
		} else {
			result = answer_with(&place, request);
		}
	}
	return result < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
