/* An output stream, agent to host: stdout, stderr, a terminal's output, or one direction of a socket. */
#ifndef CHANNEL_OUTPUT_H
#define CHANNEL_OUTPUT_H

#include "channel/stream.h"

struct output;

/* Takes over `fd` (non-blocking), even on failure, which returns NULL with errno.  `fresh`: see stream_register. */
struct output *output_new(int fd, bool terminal, bool fresh);
void output_set_owner(struct output *output, struct stream_owner *owner);
uint32_t output_number(const struct output *output);
/* Nothing is read until output_go_on; if not `wanted`, it discards the bytes so far. */
void output_hold(struct output *output);
void output_go_on(struct output *output, bool wanted);
/* Notes that no writers are left: the bytes now in the pipe are the rest. */
void output_finish(struct output *output);
/* Whether the host has forgotten the stream. */
bool output_over(const struct output *output);
/* Whether the host gave the stream up before the end. */
bool output_given_up(const struct output *output);
void output_free(struct output *output);

#endif
