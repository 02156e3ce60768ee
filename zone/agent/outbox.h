/* What the link has to send: messages in their order, then streams' frames in turn. */
#ifndef OUTBOX_H
#define OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "messages.h"
#include "wire.h"

/* -1 without memory. */
int outbox_put(enum frame_type type, uint32_t stream, const ProtobufCMessage *message);
/* The bytes to send next, or 0.  Streams are asked only if `streams`. */
size_t outbox_next(const uint8_t **bytes, bool streams);
/* So many of them have gone.  Gives the call that is answered by that, or 0. */
uint32_t outbox_sent(size_t length);
bool outbox_empty(void);
void outbox_clear(void);

#endif
