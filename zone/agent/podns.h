/* The pod's user namespace, with the network and IPC namespace that it owns.  Without it containers have the
 * ids of the zone, and the namespaces that the kernel began with. */
#ifndef PODNS_H
#define PODNS_H

#include <stdbool.h>
#include <sys/types.h>

#include "fault.h"
#include "messages.h"

/* Makes them once and enters the network and IPC namespace; the same again is fine, another mapping is not. */
int podns_make(const IdMapping *untrusted, struct fault *fault);

bool podns_is(void);
/* Of the user namespace, which stays open. */
int podns_user(void);
/* What an id of an image is in the zone: one that is not mapped becomes one outside of the mapping. */
uid_t podns_id(uid_t id);
/* To the pod's own root; nothing without a pod's user namespace.  -1 with errno. */
int podns_give(const char *path);
int podns_give_fd(int fd);
/* Into a file that exists; as the pod's own root where that of the zone may not: parameters of an IPC namespace are
 * for its owner alone.  -1 with errno. */
int podns_put(const char *path, const char *text);

/* Into the network namespace in which new interfaces appear; -1 with errno. */
int podns_outside(void);
/* And back.  Ends the process, and so the zone, where that fails: nothing could be done right from out there. */
void podns_inside(void);
/* A netlink socket that hears there of new devices: those of a user namespace are told of none.  -1 with errno. */
int podns_news(int protocol, uint32_t groups);
/* Of the namespace to be in; -1: there is only one. */
int podns_network(void);

#endif
