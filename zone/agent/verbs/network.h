/* The network of a ConfigureNetwork: checks it, and applies it to an interface. */
#ifndef VERBS_NETWORK_H
#define VERBS_NETWORK_H

#include "channel/messages.h"
#include "sys/fault.h"

/* Makes all possible checks before any change. */
int network_check(const ConfigureNetwork *untrusted, struct fault *fault);
/* Sets up an existing interface: name, MAC, MTU, addresses, routes. */
int network_apply(const ConfigureNetwork *request, unsigned int index, struct fault *fault);

#endif
