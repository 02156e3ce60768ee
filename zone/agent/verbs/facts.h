/* Facts of the zone. */
#ifndef VERBS_FACTS_H
#define VERBS_FACTS_H

#include "channel/messages.h"

#define AGENT_VERSION "0.1.0"

/* The agent's part of the opening; valid for the agent's life.  NULL with a log line. */
const Hello *facts_hello(void);

#endif
