/* First process of a test guest: does what TEST in its environment says (the kernel's command line).
 *
 *   poweroff, reboot, crash   end in that way
 *   echo                      serve vchan epochs as docs/channel.md says, and send back what comes
 *   stuck                     serve the first epoch, and take nothing from the ring
 *   mute                      serve nothing
 *   replay                    serve epochs, and send on each what /dev/xvda has for it (struct script)
 *   greedy                    serve an epoch and the directory "greedy", both with larger rings than an agent's
 *   burn                      run as much as two vCPUs can
 *   disk                      wait for /dev/xvda and print its first line; then as mute
 *   grant                     grant a page to the domain that data/peer in xenstore names; then as mute
 *   map                       map the page data/ref of the domain data/peer, and print it; then as mute
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libxenvchan.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xenevtchn.h>
#include <xengnttab.h>
#include <xenstore.h>

#define RING 65536
#define LARGEST_RING (1 << 20) /* of libxenvchan */
#define LARGER_THAN_SHARED (1 << 18)

static void fail(const char *what)
{
	perror(what);
	sync();
	reboot(RB_AUTOBOOT);
}

static void load_modules(void)
{
	for (int n = 0;; n++) {
		char path[64];

		snprintf(path, sizeof(path), "/modules/%02d.ko", n);
		int fd = open(path, O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			return;
		if (syscall(SYS_finit_module, fd, "", 0))
			fail(path);
		close(fd);
	}
}

static void echo(struct libxenvchan *channel)
{
	static char buffer[RING];

	for (;;) {
		int got = libxenvchan_read(channel, buffer, sizeof(buffer));

		if (got <= 0 || libxenvchan_send(channel, buffer, (size_t)got) != got)
			return;
	}
}

/* Offers an epoch's rings of the given sizes to the next client. */
static struct libxenvchan *offer_rings(struct xs_handle *store, int epoch, size_t size)
{
	char path[64], number[16];

	snprintf(path, sizeof(path), "data/agent/%d", epoch);
	struct libxenvchan *channel = libxenvchan_server_init(NULL, 0, path, size, size);

	if (!channel)
		fail("libxenvchan_server_init");
	channel->blocking = 1;
	int length = snprintf(number, sizeof(number), "%d", epoch);

	if (!xs_write(store, XBT_NULL, "data/agent-epoch", number, (unsigned int)length))
		fail("xs_write");
	printf("peer: serving epoch %d\n", epoch);
	return channel;
}

static struct libxenvchan *offer(struct xs_handle *store, int epoch)
{
	return offer_rings(store, epoch, RING);
}

static void serve(int take)
{
	struct xs_handle *store = xs_open(0);

	if (!store)
		fail("xs_open");
	for (int epoch = 1;; epoch++) {
		struct libxenvchan *channel = offer(store, epoch);

		while (!take)
			pause();
		while (libxenvchan_is_open(channel) == 2)
			libxenvchan_wait(channel);
		echo(channel);
		libxenvchan_close(channel);
	}
}

/* A hostile agent's behaviour for a connection; the disk has the number of scripts, then the scripts. */
struct script {
	uint32_t length; /* bytes after this header, sent first */
	uint32_t repeated; /* number of last bytes that are sent again and again */
	uint32_t then; /* without repeated bytes: 0 stay, 1 hang up, 2 notify the other side again and again */
} __attribute__((packed));

static void discard(struct libxenvchan *channel)
{
	static char buffer[RING];

	if (libxenvchan_data_ready(channel) > 0)
		libxenvchan_read(channel, buffer, sizeof(buffer));
}

static void act(struct libxenvchan *channel, const struct script *script)
{
	const unsigned char *bytes = (const unsigned char *)(script + 1);
	size_t from = script->length - script->repeated;

	if (libxenvchan_send(channel, bytes, script->length) != (int)script->length || script->then == 1)
		return;
	while (libxenvchan_is_open(channel) == 1) {
		discard(channel);
		if (script->repeated) {
			if (libxenvchan_send(channel, bytes + from, script->repeated) < 0)
				return;
		} else if (script->then == 2) {
			xenevtchn_notify(channel->event, channel->event_port);
		} else {
			libxenvchan_wait(channel);
		}
	}
}

static void replay(void)
{
	static unsigned char disk[1 << 20] __attribute__((aligned(4)));
	struct xs_handle *store = xs_open(0);
	size_t size = 0;
	ssize_t got;
	int fd;

	while ((fd = open("/dev/xvda", O_RDONLY | O_CLOEXEC)) < 0)
		usleep(20000);
	while (size < sizeof(disk) && (got = read(fd, disk + size, sizeof(disk) - size)) > 0)
		size += (size_t)got;
	uint32_t count = *(const uint32_t *)disk;

	if (!store || !count)
		fail("replay");
	for (int epoch = 1;; epoch++) {
		const unsigned char *at = disk + sizeof(count);

		/* The last script serves for all later connections. */
		for (uint32_t n = 1; n < count && n < (uint32_t)epoch; n++)
			at += sizeof(struct script) + ((const struct script *)at)->length;
		struct libxenvchan *channel = offer(store, epoch);

		while (libxenvchan_is_open(channel) == 2)
			libxenvchan_wait(channel);
		act(channel, (const struct script *)at);
		libxenvchan_close(channel);
	}
}

/* Each epoch after the end of its client, like an agent. */
static void be_greedy(void)
{
	struct xs_handle *store = xs_open(0);

	if (!store ||
	    !libxenvchan_server_init(NULL, 0, "data/share/greedy", LARGER_THAN_SHARED, LARGER_THAN_SHARED))
		fail("greedy");
	for (int epoch = 1;; epoch++) {
		struct libxenvchan *channel = offer_rings(store, epoch, LARGEST_RING);

		while (libxenvchan_is_open(channel))
			libxenvchan_wait(channel);
		libxenvchan_close(channel);
	}
}

static void burn(void)
{
	if (fork() < 0)
		fail("fork");
	for (;;)
		__asm__ volatile("");
}

static void show_disk(void)
{
	char line[64] = "";
	int fd;

	while ((fd = open("/dev/xvda", O_RDONLY | O_CLOEXEC)) < 0)
		usleep(20000);
	if (read(fd, line, sizeof(line) - 1) < 0)
		fail("read /dev/xvda");
	line[strcspn(line, "\n")] = 0;
	printf("peer: disk says %s\n", line);
	if (write(open("/dev/xvda", O_WRONLY | O_CLOEXEC), line, 1) >= 0)
		printf("peer: disk is writable\n");
	close(fd);
}

static uint32_t told(const char *path)
{
	struct xs_handle *store = xs_open(0);
	char *text = store ? xs_read(store, XBT_NULL, path, NULL) : NULL;

	if (!text)
		fail(path);
	uint32_t number = (uint32_t)strtoul(text, NULL, 10);

	free(text);
	xs_close(store);
	return number;
}

static void grant(void)
{
	xengntshr_handle *grants = xengntshr_open(NULL, 0);
	uint32_t reference;
	char *page = grants ? xengntshr_share_pages(grants, told("data/peer"), 1, &reference, 1) : NULL;

	if (!page)
		fail("xengntshr_share_pages");
	strcpy(page, "between us");
	printf("peer: granted %u.\n", reference);
}

static void map(void)
{
	xengnttab_handle *grants = xengnttab_open(NULL, 0);

	if (!grants)
		fail("xengnttab_open");
	char *page = xengnttab_map_grant_ref(grants, told("data/peer"), told("data/ref"), PROT_READ);

	if (page)
		printf("peer: mapped %.16s.\n", page);
	else
		printf("peer: cannot map: %s.\n", strerror(errno));
}

int main(void)
{
	const char *test = getenv("TEST");

	setvbuf(stdout, NULL, _IONBF, 0);
	if (mount("dev", "/dev", "devtmpfs", 0, NULL) || mount("proc", "/proc", "proc", 0, NULL))
		fail("mount");
	load_modules();
	printf("peer: up, %s\n", test ? test : "nothing to do");
	if (!test)
		fail("TEST");
	if (!strcmp(test, "poweroff"))
		reboot(RB_POWER_OFF);
	if (!strcmp(test, "reboot"))
		reboot(RB_AUTOBOOT);
	if (!strcmp(test, "crash"))
		return 0; /* the kernel panics when its first process ends */
	if (!strcmp(test, "echo"))
		serve(1);
	if (!strcmp(test, "stuck"))
		serve(0);
	if (!strcmp(test, "replay"))
		replay();
	if (!strcmp(test, "greedy"))
		be_greedy();
	if (!strcmp(test, "burn"))
		burn();
	if (!strcmp(test, "disk"))
		show_disk();
	if (!strcmp(test, "grant"))
		grant();
	if (!strcmp(test, "map"))
		map();
	for (;;)
		pause();
}
