#include "sys/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void log_line(const char *format, ...)
{
	char line[1024] = "agent: ";
	size_t length = strlen(line);
	va_list arguments;
	int n;

	va_start(arguments, format);
	n = vsnprintf(line + length, sizeof(line) - length - 1, format, arguments);
	va_end(arguments);
	if (n < 0)
		return;
	length += (size_t)n < sizeof(line) - length - 1 ? (size_t)n : sizeof(line) - length - 2;
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = ' ';
	line[length++] = '\n';
	/* A full or closed console must not stop the zone. */
	while (write(STDERR_FILENO, line, length) < 0 && errno == EINTR)
		;
}

void log_errno(const char *operation, const char *object)
{
	log_line("%s: %s: %s", operation, object, strerror(errno));
}
