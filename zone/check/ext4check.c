/* Makes file systems like the agent, for tests: ext4check FILE BYTES [files] writes a file system of BYTES bytes (with
 * "files": with room for BYTES bytes of files), and prints its size.  Status 1: impossible. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mounts/ext4.h"

int main(int argc, char **argv)
{
	uint64_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	int fd = argc > 2 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;

	if (argc > 3)
		bytes = ext4_size_for(bytes);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || ext4_format(fd, bytes) < 0) {
		fprintf(stderr, "%s\n", strerror(errno));
		return 1;
	}
	printf("%llu\n", (unsigned long long)bytes);
	return 0;
}
