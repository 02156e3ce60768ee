/* A container's directory: the OCI bundle, and the small files that came with the request. */
#ifndef CONTAINER_BUNDLE_H
#define CONTAINER_BUNDLE_H

#include "channel/messages.h"
#include "sys/fault.h"

int bundle_check(const CreateContainer *untrusted, struct fault *fault);
/* Makes the directory.  A failure leaves nothing. */
int bundle_write(const char *directory, const CreateContainer *request, struct fault *fault);
int bundle_remove(const char *directory, struct fault *fault);

#endif
