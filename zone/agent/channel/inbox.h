/* Cuts received bytes into frames.  It never keeps more than one legal frame. */
#ifndef CHANNEL_INBOX_H
#define CHANNEL_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/wire.h"

/* The buffer for the next bytes.  Only for an empty inbox. */
uint8_t *inbox_buffer(size_t *size);
void inbox_filled(size_t length);
/* Whether all received bytes have been taken. */
bool inbox_empty(void);

/* 1: a frame is complete, and the caller frees `payload`; 0: more bytes are needed; -1: `wrong` names the broken
 * rule. */
int inbox_take(struct frame_head *frame, uint8_t **payload, const char **wrong);
void inbox_clear(void);

#endif
