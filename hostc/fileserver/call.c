#include "call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int proc_fds = -1;

struct fd_name fd_name(int fd)
{
	struct fd_name name;

	snprintf(name.text, sizeof(name.text), "%d", fd);
	return name;
}

int reopen(int path, int flags)
{
	struct stat file;

	if (fstat(path, &file) < 0)
		return -1;
	if (!S_ISREG(file.st_mode) && !S_ISDIR(file.st_mode)) {
		errno = EPERM; /* the other end of a pipe or socket, or a device, would be the host kernel's */
		return -1;
	}
	return openat(proc_fds, fd_name(path).text, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

int find_fid(struct call *call, struct fid **fid)
{
	*fid = fid_find(get32(&call->in));
	return *fid ? 0 : EBADF;
}

int find_open_fid(struct call *call, struct fid **fid)
{
	int error = find_fid(call, fid);

	return error ? error : (*fid)->open < 0 && !(*fid)->xattr ? EBADF : 0;
}

int get_name(struct call *call, char name[NAME_LONGEST + 1])
{
	get_text(&call->in, name, NAME_LONGEST + 1);
	return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 ? 0 : EINVAL;
}
