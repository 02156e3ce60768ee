/* The system calls of a server that has started (seccomp(2)): any other one kills it. */
#ifndef FILESERVER_FILTER_H
#define FILESERVER_FILTER_H

#include "common/reason.h"

int filter_calls(struct reason *reason);

#endif
