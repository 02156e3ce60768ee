/* The part of the zone's statistics that other verbs use. */
#ifndef VERBS_STATS_H
#define VERBS_STATS_H

#include "channel/messages.h"

/* Sets the figures of the zone's memory; unreadable figures stay 0. */
void stats_zone_memory(ZoneStats *zone);

#endif
