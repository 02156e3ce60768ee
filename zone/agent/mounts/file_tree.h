/* The tree of a file volume: the entries of PutFiles below a directory; containers see its `root`. */
#ifndef MOUNTS_FILE_TREE_H
#define MOUNTS_FILE_TREE_H

#include "channel/messages.h"
#include "sys/fault.h"

/* Makes or replaces one entry. */
int file_tree_put(int top, const PutFiles *request, const FileEntry *untrusted, struct fault *fault);
/* Removes entries of the root that the request does not keep. */
int file_tree_prune(int top, const PutFiles *request, struct fault *fault);

#endif
