/* Limits a started server to its system calls (seccomp(2)): any other call kills it. */
#ifndef FILESERVER_FILTER_H
#define FILESERVER_FILTER_H

#include "common/reason.h"

int filter_calls(struct reason *reason);

#endif
