/* device-model: starts a QEMU that serves a Xen guest the directory it shares with the host.
 *
 * libxl runs it in QEMU's place, with QEMU's arguments and ours among them:
 *
 *   -xenpod-share NAMESPACE PLACE QEMU
 *
 * NAMESPACE is the mount namespace whose root the guest is to see.  In a mount namespace of this process's
 * own it is mounted at PLACE, the path that QEMU has been given.  So QEMU may open that path whenever the
 * guest connects, for as long as it lives, and finds nothing else there; and the host finds none of it. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "../fakedom/namespace.h"

enum { OURS = 4 };

static int share(const char *namespace, const char *place, struct reason *reason)
{
	int tree;

	/* First: files of mount namespaces are not copied to another one. */
	if (namespace_mounts(namespace, &tree, reason) < 0)
		return -1;
	if (unshare(CLONE_NEWNS) < 0)
		return because(reason, "unshare", "mounts");
	if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) < 0)
		return because(reason, "make slave", "/");
	if (move_mount(tree, "", AT_FDCWD, place, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return because(reason, "move_mount", place);
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
	qemu = ours[3];
	if (share(ours[1], ours[2], &reason) == 0) {
		memmove(ours, ours + OURS, (size_t)(argv + argc - ours - OURS + 1) * sizeof(*ours));
		execv(qemu, argv);
		because(&reason, "execv", qemu);
	}
	fprintf(stderr, "device-model: %s\n", reason.text);
	return EXIT_FAILURE;
}
