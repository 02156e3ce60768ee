/* What the zone says of itself. */
#ifndef FACTS_H
#define FACTS_H

#include "messages.h"

#define AGENT_VERSION "0.1.0"

/* The agent's part of the opening; lives as long as the agent.  NULL with a line on the console. */
const Hello *facts_hello(void);

#endif
