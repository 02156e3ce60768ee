/* Names that come over the channel, and what they may be. */
#ifndef NAME_H
#define NAME_H

#include <stdbool.h>

enum { ID_MAX = 64 };

/* [a-z0-9-]{1,64}, for containers and execs. */
bool id_valid(const char *untrusted);
/* [A-Za-z0-9._-]{1,64}, no "." and no "..". */
bool file_name_valid(const char *untrusted);
/* [a-z0-9]{1,16}: a device's name below /dev. */
bool device_name_valid(const char *untrusted);
/* 1 to 15 of [A-Za-z0-9._-], no "." and no "..": a network interface. */
bool interface_name_valid(const char *untrusted);
/* Dotted or slashed parts of [a-zA-Z0-9_-]: a kernel parameter. */
bool sysctl_valid(const char *untrusted);
/* A host name of at most 64 bytes: letters, digits, hyphens and dots. */
bool hostname_valid(const char *untrusted);

#endif
