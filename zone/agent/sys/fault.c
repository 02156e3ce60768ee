#include "sys/fault.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int fault_set(struct fault *fault, enum code code, const char *format, ...)
{
	va_list arguments;

	fault->code = code;
	va_start(arguments, format);
	vsnprintf(fault->text, sizeof(fault->text), format, arguments);
	va_end(arguments);
	return -1;
}

static enum code code_of(int error)
{
	switch (error) {
	case ENOMEM:
	case ENOSPC:
	case EMFILE:
	case ENFILE:
	case EAGAIN:
	case EDQUOT:
		return RESOURCE_EXHAUSTED;
	default:
		return INTERNAL;
	}
}

int fault_errno(struct fault *fault, const char *operation, const char *object)
{
	int error = errno;

	return fault_set(fault, code_of(error), "%s: %s: %s", operation, object, strerror(error));
}
