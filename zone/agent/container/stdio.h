/* The standard streams of a future process: three pipes, or the socket over which crun sends a terminal. */
#ifndef CONTAINER_STDIO_H
#define CONTAINER_STDIO_H

#include <stdbool.h>

#include "sys/fault.h"

enum { CONSOLE_PATH_MAX = 64 };

struct stdio {
	bool terminal;
	bool with_input;
	int child[3]; /* for job_start; -1: none */
	int ours[3]; /* the other ends, non-blocking; a terminal has only the first, for both directions */
	int console; /* listens for the terminal */
	char console_path[CONSOLE_PATH_MAX];
};

/* No open descriptors: a valid argument of stdio_close before stdio_open. */
#define STDIO_NONE ((struct stdio){ .child = { -1, -1, -1 }, .ours = { -1, -1, -1 }, .console = -1 })

int stdio_open(struct stdio *io, bool terminal, bool with_input, struct fault *fault);
/* Closes the child's ends: the child has them now. */
void stdio_close_child_ends(struct stdio *io);
/* Takes the terminal that crun has sent, after crun's end.  No effect without a terminal. */
int stdio_receive_terminal(struct stdio *io, struct fault *fault);
/* Closes all open descriptors. */
void stdio_close(struct stdio *io);

#endif
