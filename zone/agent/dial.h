/* Connections to TCP ports of the zone's loopback, each with a stream in either direction.
 *
 *   CONNECTING --connected--> two streams --both over--> gone
 *       `--refused, too late, its call's connection to the host ended--> gone */
#ifndef DIAL_H
#define DIAL_H

#include <stddef.h>

#include "messages.h"

enum { CONNECTIONS_MAX = 128 };

/* Those that have streams; how many there are. */
size_t connections_list(Dialed messages[CONNECTIONS_MAX]);

#endif
