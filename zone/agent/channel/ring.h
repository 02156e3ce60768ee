/* The ring buffer of a stream: WINDOW bytes, by offset.  Its memory exists only while in use. */
#ifndef CHANNEL_RING_H
#define CHANNEL_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Allocates the ring unless already done.  False with a log line. */
bool ring_alloc(uint8_t **ring);
void ring_free(uint8_t **ring);
/* `length` is at most WINDOW. */
void ring_write(uint8_t *ring, uint64_t offset, const uint8_t *bytes, size_t length);
void ring_read(const uint8_t *ring, uint64_t offset, uint8_t *bytes, size_t length);

#endif
