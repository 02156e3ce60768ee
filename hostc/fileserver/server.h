/* A 9P2000.L server of one directory for one client.
 *
 * The directory is the root of this process.  Each name from a client is one component, looked up by openat(2) from a
 * descriptor.  Symbolic links are never followed: the client resolves them.  Files are found again by descriptor, never
 * by path.  Requests are answered one after another. */
#ifndef FILESERVER_SERVER_H
#define FILESERVER_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* Call this before the first request.  `proc` is a descriptor of this process's /proc/self/fd. */
void server_open(int proc);
/* Answers the request of `length` bytes in `in`.  Returns the length of the reply; 0: not a 9P request, and the session
 * is over.  `msize` is the largest message, and changes with Tversion. */
size_t server_answer(const uint8_t *in, size_t length, uint8_t *out, uint32_t *msize);

#endif
