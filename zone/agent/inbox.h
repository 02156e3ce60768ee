/* What the link receives, cut into frames; never more than one legal frame is kept. */
#ifndef INBOX_H
#define INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* Room for bytes that come next; only when the inbox is empty. */
uint8_t *inbox_room(size_t *size);
void inbox_filled(size_t length);
/* All bytes that came have been taken. */
bool inbox_empty(void);

/* 1: a frame is whole, `payload` is the caller's to free; 0: more bytes are needed; -1: `wrong`. */
int inbox_take(struct frame_head *frame, uint8_t **payload, const char **wrong);
void inbox_clear(void);

#endif
