/* One connection of the zone channel: frames in, frames out, in the order of docs/channel.md. */
#ifndef LINK_H
#define LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "messages.h"
#include "transport.h"

void link_start(const struct transport *transport, const Hello *hello);

/* From the transport.  link_down is also for a connection that is replaced. */
void link_up(void);
void link_down(void);
void link_can_read(void);
void link_can_write(void);

/* Moves a bounded number of bytes; true while there is more to do at once. */
bool link_turn(void);

/* Counts connections; 0 before the first. */
uint64_t link_epoch(void);
/* After the opening, until the end. */
bool link_open(void);
/* Everything that was to be sent, but for streams' data, has gone. */
bool link_flushed(void);

/* Dropped when `epoch` is not the current connection. */
void link_reply(uint64_t epoch, uint32_t call, const Reply *reply);
void link_event(const Event *event);

#endif
