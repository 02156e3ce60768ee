/* The system calls of a server that has started (seccomp(2)): any other one kills it. */
#ifndef SHARE_FILTER_H
#define SHARE_FILTER_H

#include "../fakedom/reason.h"

int filter_calls(struct reason *reason);

#endif
