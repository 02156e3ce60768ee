/* The link's queue: messages in their order, then frames of streams in turn. */
#ifndef CHANNEL_OUTBOX_H
#define CHANNEL_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/messages.h"
#include "channel/wire.h"

/* -1: no memory. */
int outbox_add(enum frame_type type, uint32_t stream, const ProtobufCMessage *message);
/* The bytes to send next; returns their number, or 0.  Streams are asked only if `streams` is set. */
size_t outbox_next(const uint8_t **bytes, bool streams);
/* Notes that `length` of these bytes have been sent.  Returns the call whose reply is now complete, or 0. */
uint32_t outbox_sent(size_t length);
bool outbox_empty(void);
void outbox_clear(void);

#endif
