#include "channel/ring.h"

#include <string.h>
#include <sys/mman.h>

#include "channel/wire.h"
#include "sys/log.h"

bool ring_alloc(uint8_t **ring)
{
	void *memory;

	if (*ring)
		return true;
	memory = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		log_errno("mmap", "stream");
		return false;
	}
	*ring = memory;
	return true;
}

void ring_free(uint8_t **ring)
{
	if (*ring && munmap(*ring, WINDOW) < 0)
		log_errno("munmap", "stream");
	*ring = NULL;
}

static size_t before_end(uint64_t offset, size_t length)
{
	size_t room = WINDOW - offset % WINDOW;

	return length < room ? length : room;
}

void ring_write(uint8_t *ring, uint64_t offset, const uint8_t *bytes, size_t length)
{
	size_t first = before_end(offset, length);

	memcpy(ring + offset % WINDOW, bytes, first);
	memcpy(ring, bytes + first, length - first);
}

void ring_read(const uint8_t *ring, uint64_t offset, uint8_t *bytes, size_t length)
{
	size_t first = before_end(offset, length);

	memcpy(bytes, ring + offset % WINDOW, first);
	memcpy(bytes + first, ring, length - first);
}
