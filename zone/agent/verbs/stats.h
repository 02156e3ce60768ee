/* What other verbs ask of the zone's statistics. */
#ifndef VERBS_STATS_H
#define VERBS_STATS_H

#include "channel/messages.h"

/* Sets the figures of the zone's memory; they stay 0 where they cannot be read. */
void stats_zone_memory(ZoneStats *zone);

#endif
