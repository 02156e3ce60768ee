/* Streams: numbered byte sequences with credit, kept across connections (docs/channel.md).  This is the common part;
 * input.h and output.h are the two kinds. */
#ifndef CHANNEL_STREAM_H
#define CHANNEL_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stream;

/* The functions of a kind of stream.  `data` and `credit` return the broken rule of the channel, or NULL. */
struct stream_kind {
	/* Writes the stream's next frame; returns the length, or 0 without bytes to send. */
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
	bool forgotten; /* as in docs/channel.md: frames for the stream are ignored */
	bool credited; /* may send in this connection */
	bool queued; /* waits for its turn to send a frame */
	struct stream *next_in_bucket;
	struct stream *next_in_queue;
};

/* The owner of both directions of a socket.  `over` is called, possibly more than once, when a direction may have
 * ended; it must not free the streams at once. */
struct stream_owner {
	void (*over)(struct stream_owner *owner);
};

/* `fresh`: made for a call of the current connection, with its first credit.  -1 with errno if all numbers are used
 * up. */
int stream_register(struct stream *stream, const struct stream_kind *kind, bool fresh);
void stream_unregister(struct stream *stream);
/* Asks for a turn to send a frame. */
void stream_queue(struct stream *stream);

/* Called by the link. */
const char *stream_data(uint32_t number, uint64_t offset, const uint8_t *bytes, size_t length, bool fin);
const char *stream_credit(uint32_t number, uint64_t consumed, uint64_t limit, bool fin);
void streams_connected(void);
void streams_disconnected(void);
/* Whether a connection exists, and its opening is done. */
bool streams_are_connected(void);
/* Writes the next stream's frame; 0 if no stream has bytes to send. */
size_t streams_next(uint8_t *frame);

#endif
