#include "common/publish.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* "<pid> (<name>) <state> ..."; the 22nd field is the start in clock ticks since boot. */
static int start_time(pid_t pid, unsigned long long *ticks)
{
	char path[32], text[1024];
	const char *at;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return -1;
	text[n] = '\0';
	at = strrchr(text, ')');
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at && sscanf(at, " %llu", ticks) == 1 ? 0 : -1;
}

int publish(int directory, const char *name, const char *text, struct reason *reason)
{
	char draft[32];
	int fd;

	snprintf(draft, sizeof(draft), ".%s.new", name);
	fd = openat(directory, draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return reason_errno(reason, "open", draft);
	if (write(fd, text, strlen(text)) != (ssize_t)strlen(text)) {
		reason_errno(reason, "write", draft);
		close(fd);
		return -1;
	}
	close(fd);
	if (renameat(directory, draft, directory, name) < 0)
		return reason_errno(reason, "rename", name);
	return 0;
}

int publish_process(int directory, pid_t pid, const char *word, struct reason *reason)
{
	unsigned long long ticks;
	char text[128];

	if (start_time(pid, &ticks) < 0)
		return reason_errno(reason, "read", "start time of a process");
	snprintf(text, sizeof(text), "%d %llu%s%s\n", (int)pid, ticks, *word ? " " : "", word);
	return publish(directory, "pid", text, reason);
}
