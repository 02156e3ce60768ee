/* Calls for a container whose creation has been answered, while crun is still at work on it. */
#ifndef CONTAINER_HELD_H
#define CONTAINER_HELD_H

#include <stdbool.h>

#include "channel/call.h"
#include "container/container.h"
#include "sys/fault.h"

/* The creation is about to be answered. */
void held_begin(struct container *container);
/* Keeps a call until crun has ended; false: it has. */
bool held_keep(struct container *container, struct call *call);
/* crun has made the container: handles the calls that were kept, if any. */
void held_made(struct container *container);
/* crun has failed: so do they.  `refused`: see Error.cannot_start. */
void held_failed(struct container *container, const struct fault *fault, bool refused);
/* Answers a start of a container that crun could not make; false: it could. */
bool held_start_failed(const struct container *container, struct call *call);

#endif
