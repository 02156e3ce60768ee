/* The three descriptors of a process to be: pipes, or the socket over which crun hands a terminal. */
#ifndef PROCESS_STDIO_H
#define PROCESS_STDIO_H

#include <stdbool.h>

#include "fault.h"

enum { CONSOLE_PATH_MAX = 64 };

struct stdio {
	bool terminal;
	bool with_input;
	int child[3]; /* for job_start; -1: none */
	int ours[3]; /* the other ends, non-blocking; for a terminal only the first, both ways */
	int console; /* listening, while a terminal is awaited */
	char console_path[CONSOLE_PATH_MAX];
};

int stdio_open(struct stdio *io, bool terminal, bool with_input, struct fault *fault);
/* The child has its ends now. */
void stdio_started(struct stdio *io);
/* crun is done: takes the terminal that it has sent. */
int stdio_terminal(struct stdio *io, struct fault *fault);
/* Closes whatever is open. */
void stdio_close(struct stdio *io);

#endif
