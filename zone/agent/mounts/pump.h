/* Copies bytes between the host's file server and this kernel's 9p: a vchan on one side, a socket on the other. */
#ifndef MOUNTS_PUMP_H
#define MOUNTS_PUMP_H

#include "sys/fault.h"

/* Serves a vchan at data/share/<session>, and copies between the vchan and `socket` until either ends.  The other is
 * then closed: no reader waits for lost answers.  For a separate process: returns only if it cannot begin, -1 with the
 * fault.  `ready` is closed at the start. */
int pump_run(const char *session, int socket, int ready, struct fault *fault);

#endif
