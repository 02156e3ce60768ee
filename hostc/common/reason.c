#include "common/reason.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int reason_errno(struct reason *reason, const char *operation, const char *object)
{
	snprintf(reason->text, sizeof(reason->text), "%s: %s: %s", operation, object, strerror(errno));
	return -1;
}
