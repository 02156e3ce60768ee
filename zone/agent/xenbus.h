/* xenstore of this domain, by the kernel's device: just enough to wait, with no thread (libxenstore's watches
 * have one, which a static program cannot end). */
#ifndef XENBUS_H
#define XENBUS_H

/* Blocks until the node, relative to the domain's directory, has the value.  -1 with a line on the console. */
int xenbus_await(const char *node, const char *value);

#endif
