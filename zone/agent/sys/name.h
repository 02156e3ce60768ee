/* Allowed forms of names from the channel, by kind. */
#ifndef SYS_NAME_H
#define SYS_NAME_H

#include <stdbool.h>

enum { ID_MAX = 64 };

/* A container or an exec: [a-z0-9-]{1,64}. */
bool id_valid(const char *untrusted);
/* A file: [A-Za-z0-9._-]{1,64}, but neither "." nor "..". */
bool file_name_valid(const char *untrusted);
/* A device below /dev: [a-z0-9]{1,16}. */
bool device_name_valid(const char *untrusted);
/* A network interface: [A-Za-z0-9._-]{1,15}, but neither "." nor "..". */
bool interface_name_valid(const char *untrusted);
/* A kernel parameter: parts of [a-zA-Z0-9_-], separated by dots or slashes. */
bool sysctl_valid(const char *untrusted);
/* A host name: letters, digits, hyphens and dots, at most 64 bytes. */
bool hostname_valid(const char *untrusted);

#endif
