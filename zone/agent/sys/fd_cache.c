#include "sys/fd_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Enough for the files of the zone and some five containers; a path's place is one of TRIES from its hash on. */
enum { CACHE_MAX = 64, TRIES = 8 };

struct cached {
	char *path; /* NULL: free */
	int fd;
};

static struct cached table[CACHE_MAX + TRIES - 1];

static size_t hash(const char *path)
{
	uint32_t sum = 2166136261U; /* FNV-1a */

	for (; *path; path++)
		sum = (sum ^ (unsigned char)*path) * 16777619U;
	return sum % CACHE_MAX;
}

static void drop(struct cached *cached)
{
	close(cached->fd);
	free(cached->path);
	cached->path = NULL;
}

/* The path's place, or else a free place, or else the first. */
static struct cached *place_of(const char *path)
{
	struct cached *places = &table[hash(path)];
	struct cached *empty = NULL;

	for (int i = 0; i < TRIES; i++) {
		if (places[i].path && strcmp(places[i].path, path) == 0)
			return &places[i];
		if (!places[i].path && !empty)
			empty = &places[i];
	}
	return empty ? empty : places;
}

static ssize_t read_again(int fd, char *text, size_t size)
{
	size_t length = 0;
	ssize_t n = 0;

	while (length < size - 1 && (n = pread(fd, text + length, size - 1 - length, (off_t)length)) > 0)
		length += (size_t)n;
	text[length] = '\0';
	return n < 0 ? -1 : (ssize_t)length;
}

ssize_t fd_cache_read(const char *path, char *text, size_t size)
{
	struct cached *place = place_of(path);
	ssize_t n;
	int fd;

	if (place->path && strcmp(place->path, path) == 0) {
		n = read_again(place->fd, text, size);
		if (n >= 0)
			return n;
	}
	/* The place has another file, or the path's group is gone: a new group may have the same name. */
	if (place->path)
		drop(place);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read_again(fd, text, size);
	place->path = n < 0 ? NULL : strdup(path);
	place->fd = fd;
	if (!place->path)
		close(fd);
	return n;
}

void fd_cache_drop(const char *part)
{
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (table[i].path && strstr(table[i].path, part))
			drop(&table[i]);
}
