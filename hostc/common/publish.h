#ifndef PUBLISH_H
#define PUBLISH_H

#include <sys/types.h>

#include "common/reason.h"

/* Writes a file atomically: readers see all of its content, or no file. */
int publish(int directory, const char *name, const char *text, struct reason *reason);
/* Writes the file "pid": "<pid> <start in clock ticks since boot>", and then `word` unless empty. */
int publish_process(int directory, pid_t pid, const char *word, struct reason *reason);

#endif
