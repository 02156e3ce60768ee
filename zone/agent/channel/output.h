/* An output stream, agent to host: stdout, stderr, a terminal's output, or one direction of a socket. */
#ifndef CHANNEL_OUTPUT_H
#define CHANNEL_OUTPUT_H

#include "channel/stream.h"

struct output;

/* Takes over `fd` (non-blocking), also on failure, which returns NULL with errno.  `fresh`: see stream_register. */
struct output *output_new(int fd, bool terminal, bool fresh);
void output_set_owner(struct output *output, struct stream_owner *owner);
uint32_t output_number(const struct output *output);
/* Nothing is read until output_go_on, which throws away what is there if it is not wanted. */
void output_hold(struct output *output);
void output_go_on(struct output *output, bool wanted);
/* There are no more writers: what is in the pipe now is the rest. */
void output_finish(struct output *output);
/* The host has forgotten it. */
bool output_over(const struct output *output);
/* The host wanted no more before the end. */
bool output_given_up(const struct output *output);
void output_free(struct output *output);

#endif
