/* One connection of the zone channel: frames in, frames out, in the order of docs/channel.md. */
#ifndef CHANNEL_LINK_H
#define CHANNEL_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/messages.h"
#include "channel/transport.h"
#include "sys/steps.h"

/* Takes a CALL frame.  Returns the broken rule of the channel, or NULL. */
typedef const char *call_handler(uint32_t id, const uint8_t *payload, size_t length);

/* `boot`: the steps that HELLO reports. */
void link_start(const struct transport *transport, const Hello *hello, const struct steps *boot, call_handler *handler);

/* Called by the transport.  link_down is also called for a replaced connection. */
void link_up(void);
void link_down(void);
void link_can_read(void);
void link_can_write(void);

/* Moves a bounded number of bytes.  True while more can be done at once. */
bool link_step(void);

/* Counts connections; 0 before the first. */
uint64_t link_epoch(void);
/* The opening is done, and the connection has not ended. */
bool link_open(void);
/* All messages have been sent; data of streams may be left. */
bool link_flushed(void);

/* Sends a reply, unless `epoch` is an earlier connection. */
void link_reply(uint64_t epoch, uint32_t call, const Reply *reply);
void link_event(const Event *event);

#endif
