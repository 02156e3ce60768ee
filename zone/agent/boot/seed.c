/* data/seed in xenstore has 32 bytes in hexadecimal, for this boot alone: it is removed after the read. */
#include "boot/seed.h"

#include <fcntl.h>
#include <linux/random.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <xenstore.h>

#include "sys/log.h"

enum { SEED_BYTES = 32 };

static const char node[] = "data/seed";

struct seed {
	struct rand_pool_info info;
	unsigned char bytes[SEED_BYTES];
};

_Static_assert(sizeof(struct seed) == sizeof(struct rand_pool_info) + SEED_BYTES, "the bytes follow at once");

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse(const char *text, unsigned int length, struct seed *seed)
{
	if (length != 2 * SEED_BYTES)
		return false;
	for (int i = 0; i < SEED_BYTES; i++) {
		int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		seed->bytes[i] = (unsigned char)(high << 4 | low);
	}
	seed->info = (struct rand_pool_info){ .entropy_count = 8 * SEED_BYTES, .buf_size = SEED_BYTES };
	return true;
}

/* The seed's bits are credited: the kernel's generator is ready at once. */
static void add(const struct seed *seed)
{
	int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, RNDADDENTROPY, seed) < 0)
		log_errno("add entropy", "/dev/urandom");
	if (fd >= 0)
		close(fd);
}

static void take_from(struct xs_handle *store)
{
	struct seed seed = { 0 };
	unsigned int length = 0;
	char *text = xs_read(store, XBT_NULL, node, &length);

	if (text && parse(text, length, &seed))
		add(&seed);
	else
		log_line("%s: the host gave no seed", node);
	if (text) {
		explicit_bzero(text, length);
		free(text);
		if (!xs_rm(store, XBT_NULL, node))
			log_errno("xs_rm", node);
	}
	explicit_bzero(&seed, sizeof(seed));
}

void seed_take(const char *source)
{
	struct xs_handle *store;

	if (strcmp(source, "xenstore") != 0)
		return;
	store = xs_open(0);
	if (!store) {
		log_errno("xs_open", node);
		return;
	}
	take_from(store);
	xs_close(store);
}
