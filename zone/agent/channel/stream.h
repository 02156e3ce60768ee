/* Streams: numbered byte sequences with credit, kept across connections (docs/channel.md).  What both directions
 * share; input.h and output.h are the two kinds. */
#ifndef CHANNEL_STREAM_H
#define CHANNEL_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stream;

/* What a kind of stream does.  `data` and `credit` return which rule of the channel is broken, or NULL. */
struct stream_kind {
	/* Writes its next frame; returns the length, or 0 when there is nothing to send. */
	size_t (*frame)(struct stream *stream, uint8_t *frame);
	/* NULL for outputs. */
	const char *(*data)(struct stream *stream, uint64_t offset, const uint8_t *bytes, size_t length, bool fin);
	/* NULL for inputs. */
	const char *(*credit)(struct stream *stream, uint64_t consumed, uint64_t limit, bool fin);
	/* A connection has come or gone. */
	void (*connected)(struct stream *stream, bool up);
};

struct stream {
	const struct stream_kind *kind;
	uint32_t number;
	bool forgotten; /* as in docs/channel.md: frames for it are ignored */
	bool credited; /* may send in this connection */
	bool queued; /* waits for its turn to send a frame */
	struct stream *next_in_bucket;
	struct stream *next_in_queue;
};

/* Who owns both directions of a socket.  `over` is called, possibly more than once, when one of them may have ended;
 * it must not free them at once. */
struct stream_owner {
	void (*over)(struct stream_owner *owner);
};

/* `fresh`: made for a call of the current connection, so that it has its first credit.  -1 with errno when all numbers
 * are used up. */
int stream_register(struct stream *stream, const struct stream_kind *kind, bool fresh);
void stream_unregister(struct stream *stream);
/* Asks for a turn to send a frame. */
void stream_queue(struct stream *stream);

/* Called by the link. */
const char *stream_data(uint32_t number, uint64_t offset, const uint8_t *bytes, size_t length, bool fin);
const char *stream_credit(uint32_t number, uint64_t consumed, uint64_t limit, bool fin);
void streams_connected(void);
void streams_disconnected(void);
/* There is a connection, and its opening is done. */
bool streams_are_connected(void);
/* Writes the next stream's frame; 0 when no stream has anything to send. */
size_t streams_next(uint8_t *frame);

#endif
