/* A 9P2000.L server of one directory for one client.
 *
 * The root of this process is that directory.  Each name of a client is one component, looked up by openat(2) from a
 * descriptor, and symbolic links are never followed: they are the client's to resolve.  Files are found again by
 * their descriptor, never by a path.  Requests are answered one after another. */
#ifndef FILESERVER_SERVER_H
#define FILESERVER_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* Before the first request.  `proc` is a descriptor of this process's /proc/self/fd. */
void server_open(int proc);
/* Answers the request of `length` bytes in `in`.  The length of the reply; 0: the request is no 9P, and the session
 * is over.  `msize` is the largest message, and changes with Tversion. */
size_t server_answer(const uint8_t *in, size_t length, uint8_t *out, uint32_t *msize);

#endif
