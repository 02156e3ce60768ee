/* What the processes of a container have open: counted one by one, within bounds. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cgroup.h"
#include "file.h"

enum {
	PROCESSES_MAX = 4096, /* looked at, in one container */
	OPEN_MAX = 16384,     /* descriptors looked at, in one container */
};

/* A container may have any number of descriptors: beyond the bound they are not looked at. */
static void count_open(unsigned int pid, ContainerStats *stats)
{
	char path[48], target[16];
	struct dirent *entry;
	DIR *directory;
	ssize_t n;

	if (path_set(path, sizeof(path), "/proc/%u/fd", pid) < 0)
		return;
	directory = opendir(path);
	while (directory && stats->file_descriptors < OPEN_MAX && (entry = readdir(directory))) {
		if (entry->d_name[0] == '.')
			continue;
		stats->file_descriptors++;
		n = readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);
		if (n > 0 && strncmp(target, "socket:", 7) == 0)
			stats->sockets++;
	}
	if (directory)
		closedir(directory);
}

/* "<pid> (<name>) <state> ...": the name may contain anything. */
static bool runs(unsigned int pid)
{
	char path[48], text[512];
	const char *end;

	if (path_set(path, sizeof(path), "/proc/%u/stat", pid) < 0 || file_read(path, text, sizeof(text)) < 0)
		return false;
	end = strrchr(text, ')');
	return end && end[1] == ' ' && end[2] == 'R';
}

void processes_count(const char *group, ContainerStats *stats)
{
	FILE *list = cgroup_processes(group);
	char line[32];
	uint64_t pid;

	while (list && stats->processes < PROCESSES_MAX && fgets(line, sizeof(line), list)) {
		line[strcspn(line, "\n")] = '\0';
		if (!number_parse(line, INT32_MAX, &pid) || pid < 2)
			continue;
		stats->processes++;
		stats->running_processes += runs((unsigned int)pid);
		count_open((unsigned int)pid, stats);
	}
	if (list)
		fclose(list);
}
