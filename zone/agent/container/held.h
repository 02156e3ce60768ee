/* Calls for a container whose creation has been answered, while crun still works on it. */
#ifndef CONTAINER_HELD_H
#define CONTAINER_HELD_H

#include <stdbool.h>

#include "channel/call.h"
#include "container/container.h"
#include "sys/fault.h"

/* Called just before the answer to the creation. */
void held_begin(struct container *container);
/* Keeps a call until crun has ended; false: crun has ended. */
bool held_keep(struct container *container, struct call *call);
/* crun has made the container: handles the held calls. */
void held_made(struct container *container);
/* crun has failed: the held calls fail.  `refused`: see Error.cannot_start. */
void held_failed(struct container *container, const struct fault *fault, bool refused);
/* Answers a start of a container that crun could not make; false: crun made it. */
bool held_start_failed(const struct container *container, struct call *call);

#endif
