/* Network interfaces by netlink. */
#ifndef NETWORK_H
#define NETWORK_H

#include <stdint.h>

#include "fault.h"
#include "messages.h"

/* Checks everything that can be checked before anything is done. */
int network_check(const ConfigureNetwork *untrusted, struct fault *fault);
/* Applies it to the interface, which exists. */
int network_apply(const ConfigureNetwork *request, unsigned int index, struct fault *fault);
/* The loopback interface goes up. */
int network_loopback(void);
/* Into another network namespace; -1 with errno. */
int network_move(unsigned int index, int namespace);

#endif
