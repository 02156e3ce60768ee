/* Connections to TCP ports of the zone's loopback, each with a stream in either direction.
 *
 *   CONNECTING --connected--> two streams --both over--> gone
 *       `--refused, deadline, its call's connection to the host ended--> gone */
#ifndef VERBS_DIAL_H
#define VERBS_DIAL_H

#include <stddef.h>

#include "channel/messages.h"

/* Lists the connections with streams.  Returns their number. */
size_t connections_list(Dialed messages[CONNECTIONS_MAX]);

#endif
