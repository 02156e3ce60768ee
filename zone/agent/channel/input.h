/* An input stream, host to agent: stdin, a terminal's input, or one direction of a socket. */
#ifndef CHANNEL_INPUT_H
#define CHANNEL_INPUT_H

#include "channel/stream.h"

struct input;

/* Takes over `fd` (non-blocking), even on failure, which returns NULL with errno.  `fresh`: see stream_register. */
struct input *input_new(int fd, bool terminal, bool fresh);
void input_set_owner(struct input *input, struct stream_owner *owner);
uint32_t input_number(const struct input *input);
/* Ends the stream: the process has ended, and nothing reads any more. */
void input_finish(struct input *input);
/* Whether the input takes no more, and the host knows. */
bool input_over(const struct input *input);
void input_free(struct input *input);

#endif
