/* MountScratch of channel.proto: the zone's scratch disk. */
#ifndef CONTAINER_MOUNT_SCRATCH_H
#define CONTAINER_MOUNT_SCRATCH_H

#include "channel/call.h"

verb mount_scratch;

#endif
