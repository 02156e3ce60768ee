/* Makes file systems as the agent does, for tests: ext4check FILE BYTES [files], which writes one of so many bytes, or
 * one whose files can take so many, and prints its size.  Status 1: it cannot be. */
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
