#include "sys/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t file_read(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t length = 0;
	ssize_t n = 0;
	int error;

	if (fd < 0)
		return -1;
	while (length < size - 1 && (n = read(fd, text + length, size - 1 - length)) > 0)
		length += (size_t)n;
	error = errno;
	close(fd);
	text[length] = '\0';
	errno = error;
	return n < 0 ? -1 : (ssize_t)length;
}

static int write_all(int fd, const char *content, size_t length)
{
	size_t done = 0;
	ssize_t n;

	do {
		n = write(fd, content + done, length - done);
		if (n < 0 && errno != EINTR)
			return -1;
		done += n > 0 ? (size_t)n : 0;
	} while (done < length);
	return 0;
}

static int put(const char *path, int flags, mode_t mode, const char *content, size_t length)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, mode);
	int result, error;

	if (fd < 0)
		return -1;
	result = write_all(fd, content, length);
	if (!result && (flags & O_CREAT))
		result = fchmod(fd, mode);
	error = errno;
	close(fd);
	errno = error;
	return result;
}

int file_write(const char *path, const void *content, size_t length, mode_t mode)
{
	return put(path, O_CREAT | O_TRUNC, mode, content, length);
}

int file_overwrite(const char *path, const char *text)
{
	return put(path, 0, 0, text, strlen(text));
}

int path_format(char *path, size_t size, const char *format, ...)
{
	va_list arguments;
	int n;

	va_start(arguments, format);
	n = vsnprintf(path, size, format, arguments);
	va_end(arguments);
	if (n < 0 || (size_t)n >= size) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return 0;
}

int path_open_in_root(const char *root, const char *path)
{
	struct open_how how = {
		.flags = O_PATH | O_CLOEXEC,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
	};
	int top = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd, error;

	if (top < 0)
		return -1;
	fd = (int)syscall(SYS_openat2, top, path, &how, sizeof(how));
	error = errno;
	close(top);
	errno = error;
	return fd;
}

static bool parse_digits(const char **text, uint64_t limit, uint64_t *value)
{
	const char *at = *text;
	uint64_t sum = 0;

	if (*at < '0' || *at > '9')
		return false;
	for (; *at >= '0' && *at <= '9'; at++) {
		uint64_t digit = (uint64_t)(*at - '0');

		if (digit > limit || sum > (limit - digit) / 10)
			return false;
		sum = sum * 10 + digit;
	}
	*text = at;
	*value = sum;
	return true;
}

bool number_parse(const char *text, uint64_t limit, uint64_t *value)
{
	return parse_digits(&text, limit, value) && *text == '\0';
}

bool text_find_number(const char *text, const char *key, uint64_t *value)
{
	size_t length = strlen(key);

	for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
		const char *at = line + length;

		if (strncmp(line, key, length) != 0)
			continue;
		if (length && *at != ' ' && *at != '\t')
			continue;
		at += strspn(at, " \t");
		return parse_digits(&at, UINT64_MAX, value);
	}
	return false;
}
