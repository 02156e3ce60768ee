/* A container's directory: the OCI bundle, and the small files that came with it. */
#ifndef BUNDLE_H
#define BUNDLE_H

#include "fault.h"
#include "messages.h"

int bundle_check(const CreateContainer *untrusted, struct fault *fault);
/* Makes the directory; on failure nothing is left. */
int bundle_write(const char *directory, const CreateContainer *request, struct fault *fault);
int bundle_remove(const char *directory, struct fault *fault);

#endif
