/* The shared directory, from the host's file server. */
#ifndef CONTAINER_SHARED_H
#define CONTAINER_SHARED_H

#include "channel/call.h"

/* MountShared. */
verb mount_shared;

#endif
