#include "boot/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot/module.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/loop.h"

static int fill_descriptors(void)
{
	int fd = open("/dev/console", O_RDWR | O_NOCTTY);

	if (fd < 0)
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd < 2)
		fd = dup(fd);
	if (fd < 0)
		return -1;
	if (fd > 2)
		close(fd);
	return 0;
}

int boot_console(void)
{
	bool complete = true;
	int flags;

	for (int i = 0; i < 3; i++)
		complete = complete && fcntl(i, F_GETFD) >= 0;
	if (!complete && fill_descriptors() < 0) {
		log_errno("open", "/dev/console and /dev/null");
		return -1;
	}
	flags = fcntl(STDERR_FILENO, F_GETFL);
	if (flags < 0 || fcntl(STDERR_FILENO, F_SETFL, flags | O_NONBLOCK) < 0) {
		log_errno("fcntl", "console");
		return -1;
	}
	return 0;
}

/* crun needs pivot_root(2), which refuses a root without a parent mount, such as an initramfs.  Therefore the root is
 * bound to a directory in itself, moved over the old root, and entered.  Nothing is copied. */
int boot_root(void)
{
	static const char place[] = "/mnt";

	if (mount("/", place, NULL, MS_BIND | MS_REC, NULL) < 0) {
		log_errno("bind the root", place);
		return -1;
	}
	if (chdir(place) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0) {
		log_errno("move to the root", place);
		return -1;
	}
	if (mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) < 0) {
		log_errno("make private", "/");
		return -1;
	}
	return 0;
}

static const struct place {
	const char *path;
	const char *type;
	unsigned long flags;
	const char *options;
} places[] = {
	{ "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL },
	{ "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL },
	{ "/dev", "devtmpfs", MS_NOSUID, "mode=0755" },
	{ "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,mode=0620,ptmxmode=0666,gid=5" },
	{ "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777" },
	{ "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755" },
	{ "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777" },
};

static bool is_mount_point(const char *path)
{
	char parent[64];
	struct stat here, above;

	if (path_format(parent, sizeof(parent), "%s/..", path) < 0 || stat(path, &here) < 0 ||
	    stat(parent, &above) < 0)
		return false;
	return here.st_dev != above.st_dev;
}

int boot_mounts(void)
{
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		const struct place *place = &places[i];

		if (is_mount_point(place->path))
			continue;
		if (mkdir(place->path, 0755) < 0 && errno != EEXIST && errno != EROFS) {
			log_errno("mkdir", place->path);
			return -1;
		}
		if (mount(place->type, place->path, place->type, place->flags, place->options) < 0) {
			log_errno("mount", place->path);
			return -1;
		}
	}
	return 0;
}

static void take_module(const char *directory, const char *name, bool wanted)
{
	char path[256];

	if (path_format(path, sizeof(path), "%s/%s", directory, name) < 0 || (wanted && module_load(path) < 0)) {
		log_errno("load module", name);
		return;
	}
	unlink(path); /* on Xen the file is in memory, and only the loaded module is needed from now on */
}

/* The file "order" lists names of files beside it, in the order of their dependencies.  If a module does not load, this
 * kernel may not need it: the failure is logged, and the boot goes on.  Unwanted modules are only removed. */
static int take_modules(const char *directory, bool wanted)
{
	char path[256], order[4096];
	char *rest = order;
	char *name;

	if (path_format(path, sizeof(path), "%s/order", directory) < 0 || file_read(path, order, sizeof(order)) < 0) {
		if (errno == ENOENT)
			return 0;
		log_errno("read modules of", directory);
		return -1;
	}
	while ((name = strsep(&rest, "\n")))
		if (*name)
			take_module(directory, name, wanted);
	return 0;
}

int boot_modules(bool scratch)
{
	return take_modules("/lib/modules", true) | take_modules("/lib/modules/scratch", scratch);
}

/* The work of udev on other machines: links that the kernel does not make, and devices that any user may open. */
int boot_devices(void)
{
	static const char *const links[][2] = {
		{ "/dev/fd", "/proc/self/fd" },
		{ "/dev/stdin", "/proc/self/fd/0" },
		{ "/dev/stdout", "/proc/self/fd/1" },
		{ "/dev/stderr", "/proc/self/fd/2" },
	};
	static const char *const open_to_all[] = { "/dev/fuse", "/dev/net/tun" };

	for (size_t i = 0; i < ARRAY_LEN(links); i++)
		if (symlink(links[i][1], links[i][0]) < 0 && errno != EEXIST) {
			log_errno("symlink", links[i][0]);
			return -1;
		}
	for (size_t i = 0; i < ARRAY_LEN(open_to_all); i++)
		if (chmod(open_to_all[i], 0666) < 0 && errno != ENOENT) {
			log_errno("chmod", open_to_all[i]);
			return -1;
		}
	return 0;
}

int boot_directories(void)
{
	static const char *const directories[] = {
		"/run/xenpod",
		"/run/xenpod/containers",
		"/run/xenpod/console",
		"/run/crun",
	};

	for (size_t i = 0; i < ARRAY_LEN(directories); i++)
		if (mkdir(directories[i], 0711) < 0 && errno != EEXIST) {
			log_errno("mkdir", directories[i]);
			return -1;
		}
	return 0;
}
