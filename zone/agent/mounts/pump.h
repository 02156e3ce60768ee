/* The bytes between the host's file server and this kernel's 9p: a vchan on one side, a socket on the other. */
#ifndef MOUNTS_PUMP_H
#define MOUNTS_PUMP_H

#include "sys/fault.h"

/* Serves a vchan at data/share/<session>, and copies between it and `socket` until one of them ends.  The other one is
 * then closed, so that nobody waits for answers that do not come.  For a process of its own: it only returns when it
 * cannot begin, -1 with the fault.  `ready` is closed once it has begun. */
int pump_run(const char *session, int socket, int ready, struct fault *fault);

#endif
