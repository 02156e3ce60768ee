/* The network that ConfigureNetwork asks for: checks it, and gives it to an interface. */
#ifndef VERBS_NETWORK_H
#define VERBS_NETWORK_H

#include "channel/messages.h"
#include "sys/fault.h"

/* Checks all that can be checked before anything is changed. */
int network_check(const ConfigureNetwork *untrusted, struct fault *fault);
/* Sets up an interface that exists: name, MAC, MTU, addresses, routes. */
int network_apply(const ConfigureNetwork *request, unsigned int index, struct fault *fault);

#endif
