/* Streams: numbered byte sequences with credit, kept across connections (docs/channel.md). */
#ifndef STREAM_H
#define STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loop.h"

/* What both directions have.  Lives as long as its process is known. */
struct stream {
	uint32_t number;
	bool is_input;
	bool forgotten; /* by docs/channel.md: frames for it are ignored */
	bool credited; /* may talk in this connection */
	bool queued; /* waits for its turn to send a frame */
	struct stream *next_in_bucket;
	struct stream *next_in_queue;
};

struct output; /* stdout, stderr, a terminal's output: agent -> host */
struct input; /* stdin: host -> agent */

/* Take over `fd` (non-blocking), also on failure, which gives NULL with errno.  `fresh`: made for a
 * call of the current connection, so that the first credit is there. */
struct output *output_new(int fd, bool terminal, bool fresh);
struct input *input_new(int fd, bool terminal, bool fresh);
uint32_t output_number(const struct output *output);
uint32_t input_number(const struct input *input);
/* No more writers: what is in the pipe now is the rest. */
void output_finish(struct output *output);
/* The process is gone: nobody reads. */
void input_finish(struct input *input);
void output_free(struct output *output);
void input_free(struct input *input);

/* The two directions of a socket.  `over` is called, possibly more than once, when one of them may have
 * come to its end; it must not free them at once. */
struct stream_owner {
	void (*over)(struct stream_owner *owner);
};
void output_of_socket(struct output *output, struct stream_owner *owner);
void input_of_socket(struct input *input, struct stream_owner *owner);
/* The host has forgotten it. */
bool output_over(const struct output *output);
/* The host wanted no more before its end. */
bool output_given_up(const struct output *output);
/* It takes no more, and the host was told. */
bool input_over(const struct input *input);

/* From the link.  The text says what rule is broken, NULL is fine. */
const char *stream_data(uint32_t number, uint64_t offset, const uint8_t *bytes, size_t length, bool fin);
const char *stream_credit(uint32_t number, uint64_t consumed, uint64_t limit, bool fin);
void streams_connected(void);
void streams_disconnected(void);
/* The next stream's frame, 0 when none has anything to send. */
size_t streams_next(uint8_t *frame);
/* -- between stream.c, output.c and input.c ------------------------------------------------- */

/* -1 when all numbers are used up. */
int stream_register(struct stream *stream, bool is_input, bool fresh);
void stream_unregister(struct stream *stream);
/* Asks for a turn. */
void stream_queue(struct stream *stream);

size_t output_frame(struct output *output, uint8_t *frame);
size_t input_frame(struct input *input, uint8_t *frame);
const char *output_credit(struct output *output, uint64_t consumed, uint64_t limit, bool fin);
const char *input_data(struct input *input, uint64_t offset, const uint8_t *bytes, size_t length, bool fin);
void output_connection(struct output *output, bool up);
void input_connection(struct input *input, bool up);
struct output *output_of(struct stream *stream);
struct input *input_of(struct stream *stream);

#endif
