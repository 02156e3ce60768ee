#include "sys/name.h"

#include <string.h>

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

static bool consists_of(const char *untrusted, const char *allowed, size_t longest)
{
	size_t length = strnlen(untrusted, longest + 1);

	return length >= 1 && length <= longest && strspn(untrusted, allowed) == length;
}

static bool dots_only(const char *untrusted)
{
	return strcmp(untrusted, ".") == 0 || strcmp(untrusted, "..") == 0;
}

bool id_valid(const char *untrusted)
{
	return consists_of(untrusted, LOWER DIGITS "-", ID_MAX);
}

bool file_name_valid(const char *untrusted)
{
	return consists_of(untrusted, LOWER UPPER DIGITS "._-", 64) && !dots_only(untrusted);
}

bool device_name_valid(const char *untrusted)
{
	return consists_of(untrusted, LOWER DIGITS, 16);
}

bool interface_name_valid(const char *untrusted)
{
	return consists_of(untrusted, LOWER UPPER DIGITS "._-", 15) && !dots_only(untrusted);
}

bool sysctl_valid(const char *untrusted)
{
	return consists_of(untrusted, LOWER UPPER DIGITS "._-/", 256) && !strstr(untrusted, "..") &&
	       !strstr(untrusted, "//") && !strstr(untrusted, "./") && !strstr(untrusted, "/.") &&
	       !strchr("./", untrusted[0]);
}

bool hostname_valid(const char *untrusted)
{
	return consists_of(untrusted, LOWER UPPER DIGITS "-.", 64);
}
