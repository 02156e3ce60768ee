/* The pod's user namespace, with its network and IPC namespaces.  Without it, containers have the zone's ids and the
 * kernel's first namespaces. */
#ifndef SYS_POD_USERNS_H
#define SYS_POD_USERNS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sys/fault.h"

/* Makes the namespaces once, and enters the network and IPC namespaces.  A repetition with the same mapping is
 * harmless, a different mapping is refused.  The mapping is untrusted. */
int pod_userns_make(uint32_t host_id, uint32_t length, struct fault *fault);

bool pod_userns_exists(void);
/* A descriptor of the user namespace; the namespace stays open. */
int pod_userns_fd(void);
/* The zone's id for an image's id.  An unmapped id becomes an id outside the mapping. */
uid_t pod_userns_map_id(uid_t id);
/* Make the pod's root the owner; no effect without a user namespace.  -1 with errno. */
int pod_userns_chown(const char *path);
int pod_userns_fchown(int fd);
/* Writes to an existing file, as the pod's root if the zone's root may not: only the owner of an IPC namespace may
 * write its parameters.  -1 with errno. */
int pod_userns_write(const char *path, const char *text);

/* Switches to the first network namespace, where new interfaces appear.  -1 with errno. */
int pod_network_leave(void);
/* Switches back.  A failure ends the agent, and with it the zone: the agent could not work from outside. */
void pod_network_enter(void);
/* Opens a netlink socket for events of new devices.  It belongs to the first network namespace, because network
 * namespaces of a user namespace receive no device events.  -1 with errno. */
int pod_network_listen_outside(int protocol, uint32_t groups);
/* A descriptor of the pod's network namespace; -1 if only the first namespace exists. */
int pod_network_fd(void);

#endif
