/* Lets hostc/fileserver's server answer the messages on standard input, in a directory: for tests with sanitizers.
 *
 *   sharecheck DIRECTORY
 *
 * Unlike the server (fileserver/confine.c), it is confined by chroot(2) only.  The answers go to standard output. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fileserver/server.h"

int main(int argc, char **argv)
{
	uint32_t msize = MSIZE_MAX;
	/* On the heap, exactly as long as the message: sanitizers then detect reads beyond it. */
	uint8_t head[4], *in, *out = malloc(MSIZE_MAX);
	int proc = open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (argc != 2 || !out || proc < 0 || chroot(argv[1]) < 0 || chdir("/") < 0)
		return 2;
	umask(0);
	server_open(proc);
	while (fread(head, 1, 4, stdin) == 4) {
		struct reader size = { head, 4, false };
		uint32_t length = get32(&size);
		size_t answer;

		if (length < HEADER || length > msize)
			return 1;
		in = malloc(length);
		if (!in || fread(in + 4, 1, length - 4, stdin) != length - 4)
			return 1;
		answer = server_answer(in, length, out, &msize);
		free(in);
		if (!answer)
			return 1;
		fwrite(out, 1, answer, stdout);
		fflush(stdout);
	}
	return 0;
}
