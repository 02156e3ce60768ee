#include "container/stdio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/log.h"
#include "sys/pod_userns.h"

static void close_one(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static int open_pipe(struct stdio *io, int which, struct fault *fault)
{
	int ends[2];
	bool input = which == 0;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return fault_errno(fault, "pipe2", "standard streams");
	io->child[which] = ends[input ? 0 : 1];
	io->ours[which] = ends[input ? 1 : 0];
	if (fcntl(io->ours[which], F_SETFL, O_NONBLOCK) < 0)
		return fault_errno(fault, "fcntl", "standard streams");
	/* The pod's root becomes the owner: the process can then open /dev/stdout again. */
	if (pod_userns_fchown(io->child[which]) < 0)
		return fault_errno(fault, "fchown", "standard streams");
	return 0;
}

static int listen_for_terminal(struct stdio *io, struct fault *fault)
{
	static unsigned int serial;
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (path_format(io->console_path, sizeof(io->console_path), "/run/xenpod/console/%u", ++serial) < 0)
		return fault_errno(fault, "name", "console socket");
	strcpy(address.sun_path, io->console_path);
	io->console = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (io->console < 0)
		return fault_errno(fault, "socket", "console socket");
	if (bind(io->console, (struct sockaddr *)&address, sizeof(address)) < 0)
		return fault_errno(fault, "bind", io->console_path);
	if (listen(io->console, 1) < 0)
		return fault_errno(fault, "listen", io->console_path);
	return 0;
}

int stdio_open(struct stdio *io, bool terminal, bool with_input, struct fault *fault)
{
	*io = STDIO_NONE;
	io->terminal = terminal;
	io->with_input = with_input;
	if (terminal)
		return listen_for_terminal(io, fault);
	if (with_input && open_pipe(io, 0, fault) < 0)
		return -1;
	if (open_pipe(io, 1, fault) < 0)
		return -1;
	return open_pipe(io, 2, fault);
}

void stdio_close_child_ends(struct stdio *io)
{
	for (int i = 0; i < 3; i++)
		close_one(&io->child[i]);
}

static int receive_descriptor(int connection)
{
	char byte[64];
	struct iovec data = { .iov_base = byte, .iov_len = sizeof(byte) };
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	struct cmsghdr *part;
	int fd;

	if (recvmsg(connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return -1;
	part = CMSG_FIRSTHDR(&message);
	if (!part || part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS ||
	    part->cmsg_len != CMSG_LEN(sizeof(int))) {
		errno = EBADMSG;
		return -1;
	}
	memcpy(&fd, CMSG_DATA(part), sizeof(fd));
	return fd;
}

int stdio_receive_terminal(struct stdio *io, struct fault *fault)
{
	int connection;

	if (!io->terminal)
		return 0;
	connection = accept4(io->console, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (connection < 0)
		return fault_errno(fault, "accept4", "the terminal from crun");
	io->ours[0] = receive_descriptor(connection);
	if (io->ours[0] < 0)
		fault_errno(fault, "recvmsg", "the terminal from crun");
	close(connection);
	if (io->ours[0] < 0)
		return -1;
	if (fcntl(io->ours[0], F_SETFL, O_NONBLOCK) < 0)
		return fault_errno(fault, "fcntl", "the terminal from crun");
	return 0;
}

void stdio_close(struct stdio *io)
{
	for (int i = 0; i < 3; i++) {
		close_one(&io->child[i]);
		close_one(&io->ours[i]);
	}
	if (io->console >= 0 && unlink(io->console_path) < 0 && errno != ENOENT)
		log_errno("unlink", io->console_path);
	close_one(&io->console);
}
