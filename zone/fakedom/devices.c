/* /dev as a kernel would give it, on a tmpfs of the zone's own. */
#include <errno.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fakedom.h"

static const struct node {
	const char *path;
	mode_t mode;
	unsigned int major;
	unsigned int minor;
} nodes[] = {
	{ "/dev/null", S_IFCHR | 0666, 1, 3 },	  { "/dev/zero", S_IFCHR | 0666, 1, 5 },
	{ "/dev/full", S_IFCHR | 0666, 1, 7 },	  { "/dev/random", S_IFCHR | 0666, 1, 8 },
	{ "/dev/urandom", S_IFCHR | 0666, 1, 9 }, { "/dev/tty", S_IFCHR | 0666, 5, 0 },
};

static const char *const links[][2] = {
	{ "/dev/ptmx", "pts/ptmx" },	     { "/dev/fd", "/proc/self/fd" },
	{ "/dev/stdin", "/proc/self/fd/0" }, { "/dev/stdout", "/proc/self/fd/1" },
	{ "/dev/stderr", "/proc/self/fd/2" },
};

int init_devices(struct reason *reason)
{
	if (mount("dev", "/dev", "tmpfs", MS_NOSUID | MS_STRICTATIME, "mode=0755,size=1m") < 0)
		return because(reason, "mount", "/dev");
	for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++)
		if (mknod(nodes[i].path, nodes[i].mode, makedev(nodes[i].major, nodes[i].minor)) < 0 ||
		    chmod(nodes[i].path, nodes[i].mode & 07777) < 0)
			return because(reason, "mknod", nodes[i].path);
	for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
		if (symlink(links[i][1], links[i][0]) < 0)
			return because(reason, "symlink", links[i][0]);
	if (mkdir("/dev/pts", 0755) < 0 || mkdir("/dev/shm", 01777) < 0)
		return because(reason, "mkdir", "/dev");
	return 0;
}
