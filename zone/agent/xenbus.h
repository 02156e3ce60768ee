/* The two xenstore nodes that the channel needs. */
#ifndef XENBUS_H
#define XENBUS_H

#include <stdint.h>

/* Paths are relative to the domain's own.  -1 with a line on the console. */
int xenbus_write(const char *path, uint64_t number);
/* Calls `changed` with the node's number (0 if it has none) now and after each change. */
int xenbus_watch(const char *path, void (*changed)(uint64_t number));

#endif
