/* Starts the agent in a guest without Xen, for tests: runs as the guest's init and becomes the agent, with a child that
 * copies between the channel's socket and the second serial port. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>
#include <unistd.h>

enum { CHANNEL_FD = 3 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int channel(struct sockaddr_un *address, socklen_t *length)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	/* An abstract name: no directory is writable yet. */
	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(address->sun_path, "\0channel", 8);
	*length = sizeof(address->sun_family) + 8;
	if (fd < 0)
		fail("socket");
	return fd;
}

static int serial_port(void)
{
	int fd = open("/dev/ttyS1", O_RDWR | O_NOCTTY);
	struct termios mode;

	if (fd < 0 || tcgetattr(fd, &mode) < 0)
		fail("/dev/ttyS1");
	cfmakeraw(&mode);
	cfsetspeed(&mode, B115200);
	if (tcsetattr(fd, TCSANOW, &mode) < 0)
		fail("tcsetattr");
	return fd;
}

static void move(int from, int to)
{
	char bytes[4096];
	ssize_t n = read(from, bytes, sizeof(bytes));

	if (n <= 0)
		exit(0);
	for (ssize_t done = 0, step; done < n; done += step) {
		step = write(to, bytes + done, (size_t)(n - done));
		if (step <= 0)
			exit(0);
	}
}

static void copy_streams(int port)
{
	struct sockaddr_un address;
	socklen_t length;
	int fd = channel(&address, &length);
	struct pollfd ends[2] = { { .fd = fd, .events = POLLIN }, { .fd = port, .events = POLLIN } };

	if (connect(fd, (struct sockaddr *)&address, length) < 0)
		fail("connect");
	while (poll(ends, 2, -1) > 0) {
		if (ends[0].revents)
			move(fd, port);
		if (ends[1].revents)
			move(port, fd);
	}
	exit(1);
}

int main(void)
{
	struct sockaddr_un address;
	socklen_t length;
	int fd, port;

	if (mount("dev", "/dev", "devtmpfs", 0, NULL) < 0)
		fail("mount /dev");
	fd = channel(&address, &length);
	if (bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 1) < 0)
		fail("listen");
	port = serial_port();
	switch (fork()) {
	case -1:
		fail("fork");
		break;
	case 0:
		copy_streams(port);
		break;
	default:
		close(port);
	}
	if (fd != CHANNEL_FD && (dup2(fd, CHANNEL_FD) < 0 || close(fd) < 0))
		fail("dup2");
	if (setenv("XENPOD_CHANNEL", "fd:3", 1) < 0)
		fail("setenv");
	execl("/init", "init", (char *)NULL);
	fail("execl");
}
