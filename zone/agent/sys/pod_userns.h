/* The pod's user namespace, with the network and IPC namespaces that it owns.  Without one, containers have the
 * zone's ids and the namespaces that the kernel began with. */
#ifndef SYS_POD_USERNS_H
#define SYS_POD_USERNS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sys/fault.h"

/* Makes the namespaces once, and enters the network and IPC namespaces.  The same mapping again is fine, another one
 * is refused.  The mapping is untrusted. */
int pod_userns_make(uint32_t host_id, uint32_t length, struct fault *fault);

bool pod_userns_exists(void);
/* A descriptor of the user namespace; it stays open. */
int pod_userns_fd(void);
/* What an image's id is in the zone.  An id that is not mapped becomes one outside the mapping. */
uid_t pod_userns_map_id(uid_t id);
/* Make the pod's root the owner; without a user namespace they do nothing.  -1 with errno. */
int pod_userns_chown(const char *path);
int pod_userns_fchown(int fd);
/* Writes to a file that exists, as the pod's root where the zone's may not: the parameters of an IPC namespace are
 * only for its owner.  -1 with errno. */
int pod_userns_write(const char *path, const char *text);

/* Switches to the first network namespace, where new interfaces appear.  -1 with errno. */
int pod_network_leave(void);
/* Switches back.  A failure ends the agent, and with it the zone: nothing could be done right from outside. */
void pod_network_enter(void);
/* Opens a netlink socket that hears of new devices.  It belongs to the first network namespace, because those of a
 * user namespace are told of none.  -1 with errno. */
int pod_network_listen_outside(int protocol, uint32_t groups);
/* A descriptor of the pod's network namespace; -1 when there is only the first. */
int pod_network_fd(void);

#endif
