/* device-model: starts a QEMU that serves a Xen guest the directory it shares with the host.
 *
 * libxl runs it in QEMU's place, with QEMU's arguments and ours among them:
 *
 *   -xenpod-share NAMESPACE PLACE QEMU
 *
 * The guest is to see the root of the mount namespace NAMESPACE.  It is mounted at PLACE, the path given to QEMU, in a
 * mount namespace of this process's own.  So QEMU can open that path whenever the guest connects, and finds nothing
 * else there; and nothing of it appears on the host. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "../fakedom/namespace.h"
#include "../fakedom/ordinary.h"

enum { OURS = 4 };

static int share(const char *namespace, const char *place, struct reason *reason)
{
	int tree;

	/* Before unshare(2): a copy of the mounts leaves out files of mount namespaces. */
	if (namespace_mounts(namespace, &tree, reason) < 0)
		return -1;
	if (unshare(CLONE_NEWNS) < 0)
		return reason_errno(reason, "unshare", "mounts");
	if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) < 0)
		return reason_errno(reason, "make slave", "/");
	if (move_mount(tree, "", AT_FDCWD, place, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return reason_errno(reason, "move_mount", place);
	close(tree);
	return 0;
}

int main(int argc, char **argv)
{
	struct reason reason = { "" };
	char **ours = argv + 1;
	const char *qemu;

	while (*ours && strcmp(*ours, "-xenpod-share") != 0)
		ours++;
	if (argv + argc - ours < OURS) {
		fputs("device-model: want -xenpod-share NAMESPACE PLACE QEMU\n", stderr);
		return EXIT_FAILURE;
	}
	ordinary_process();
	qemu = ours[3];
	if (share(ours[1], ours[2], &reason) == 0) {
		memmove(ours, ours + OURS, (size_t)(argv + argc - ours - OURS + 1) * sizeof(*ours));
		execv(qemu, argv);
		reason_errno(&reason, "execv", qemu);
	}
	fprintf(stderr, "device-model: %s\n", reason.text);
	return EXIT_FAILURE;
}
