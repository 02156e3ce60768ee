/* WINDOW bytes of a stream, by offset; memory that is there only while in use. */
#ifndef RING_H
#define RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes it, unless it is there; false with a line on the console. */
bool ring_take(uint8_t **ring);
void ring_drop(uint8_t **ring);
/* `length` is at most WINDOW. */
void ring_put(uint8_t *ring, uint64_t offset, const uint8_t *bytes, size_t length);
void ring_get(const uint8_t *ring, uint64_t offset, uint8_t *bytes, size_t length);

#endif
