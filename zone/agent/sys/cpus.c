#include "sys/cpus.h"

#include <errno.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "sys/cgroup.h"
#include "sys/file.h"
#include "sys/log.h"

#define ATTRIBUTE "trusted.xenpod.vcpus"

enum { CPUS_MAX = 1024, PATH_LENGTH = 64 };

static enum { FIXED, HOTPLUG, GROUP } kind;

int cpus_prepare(const char *source)
{
	if (!*source)
		return 0;
	if (strcmp(source, "hotplug") == 0) {
		kind = HOTPLUG;
	} else if (strcmp(source, "group") == 0) {
		kind = GROUP;
	} else {
		log_line("XENPOD_CPUS: %s: neither hotplug nor group", source);
		return -1;
	}
	return 0;
}

/* CPU 0 and absent CPUs have no such file. */
static void start(uint32_t number)
{
	char path[PATH_LENGTH], state[8];

	if (path_format(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/online", number) < 0 ||
	    file_read(path, state, sizeof(state)) < 0 || state[0] != '0')
		return;
	if (file_overwrite(path, "1") < 0)
		log_errno("start CPU", path);
}

void cpus_start(uint32_t count)
{
	if (kind != HOTPLUG)
		return;
	for (uint32_t number = 1; number < count && number < CPUS_MAX; number++)
		start(number);
}

static uint64_t noted(void)
{
	const char *group = cgroup_is_v2() ? CGROUP_ROOT : CGROUP_ROOT "/memory";
	char text[8];
	ssize_t length = getxattr(group, ATTRIBUTE, text, sizeof(text) - 1);
	uint64_t number = 0;

	if (length < 0) {
		log_errno("getxattr", group);
		return 0;
	}
	text[length] = '\0';
	return number_parse(text, CPUS_MAX, &number) ? number : 0;
}

uint32_t cpus_running(void)
{
	long running = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t count = kind == GROUP ? noted() : 0;

	if (!count)
		count = running > 0 ? (uint64_t)running : 0;
	return (uint32_t)count;
}
