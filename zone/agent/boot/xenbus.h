/* This domain's xenstore, through the kernel's device: just enough to wait, and without a thread.  libxenstore's
 * watches start one, which a static program cannot end. */
#ifndef BOOT_XENBUS_H
#define BOOT_XENBUS_H

/* Blocks until a node, relative to the domain's directory, has the value.  -1 with a log line. */
int xenbus_await(const char *node, const char *value);

#endif
