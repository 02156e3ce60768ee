#include "container/layer_use.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "container/job.h"
#include "mounts/scratch.h"
#include "sys/log.h"

enum {
	DEPTH_MAX = 256, /* deeper files are not counted: each level holds a descriptor */
	PAUSE_FACTOR = 20,
};
#define PAUSE_MIN_NS SECOND_NS

/* Shared with the counting process. */
struct counted {
	char id[ID_MAX + 1];
	/* A file with several names counts in equal parts for each name. */
	double bytes, inodes;
};

static struct counted *counts;
static size_t layers;
static struct job job;
static bool running;
static uint64_t began_ns, next_ns;

static void count_entries(int fd, unsigned int depth, struct counted *sum);

static void count_entry(int above, const char *name, unsigned int depth, struct counted *sum)
{
	struct stat file;
	int fd;

	if (fstatat(above, name, &file, AT_SYMLINK_NOFOLLOW) < 0)
		return; /* just removed */
	if (!S_ISDIR(file.st_mode)) {
		sum->bytes += (double)file.st_blocks * 512 / (double)file.st_nlink;
		sum->inodes += 1 / (double)file.st_nlink;
		return;
	}
	sum->bytes += (double)file.st_blocks * 512;
	sum->inodes += 1;
	if (depth == DEPTH_MAX)
		return;
	fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0)
		count_entries(fd, depth + 1, sum);
}

static void count_entries(int fd, unsigned int depth, struct counted *sum)
{
	DIR *entries = fdopendir(fd);
	struct dirent *entry;

	if (!entries) {
		close(fd);
		return;
	}
	while ((entry = readdir(entries)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			count_entry(fd, entry->d_name, depth, sum);
	closedir(entries);
}

static int count_all(void *data, struct fault *fault)
{
	(void)data;
	for (size_t i = 0; i < layers; i++) {
		struct counted sum = { .bytes = 0 };
		char path[PATH_SIZE];
		int fd;

		if (scratch_layer_path(path, sizeof(path), counts[i].id) < 0)
			return fault_errno(fault, "count", counts[i].id);
		fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			continue; /* just deleted */
		count_entries(fd, 0, &sum);
		counts[i].bytes = sum.bytes;
		counts[i].inodes = sum.inodes;
	}
	return 0;
}

static void ended(struct job *done, const struct fault *fault)
{
	uint64_t pause = (now_ns() - began_ns) * PAUSE_FACTOR;

	(void)done;
	running = false;
	next_ns = now_ns() + (pause < PAUSE_MIN_NS ? PAUSE_MIN_NS : pause);
	if (fault) {
		log_line("%s", fault->text);
		return;
	}
	for (size_t i = 0; i < layers; i++) {
		struct container *container = container_find(counts[i].id);

		if (!container)
			continue;
		container->layer.bytes = (uint64_t)(counts[i].bytes + 0.5);
		container->layer.inodes = (uint64_t)(counts[i].inodes + 0.5);
	}
}

static int make_counts(void)
{
	void *shared;

	if (counts)
		return 0;
	shared = mmap(NULL, CONTAINERS_MAX * sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		return -1;
	counts = shared;
	return 0;
}

static void begin(void)
{
	struct fault fault;

	if (running || now_ns() < next_ns)
		return;
	if (make_counts() < 0) {
		log_errno("mmap", "counts");
		return;
	}
	layers = 0;
	for (struct container *c = container_first(); c && layers < CONTAINERS_MAX; c = c->next) {
		counts[layers] = (struct counted){ .bytes = (double)c->layer.bytes };
		counts[layers].inodes = (double)c->layer.inodes;
		strcpy(counts[layers++].id, c->id);
	}
	began_ns = now_ns();
	job = (struct job){ .done = ended };
	running = job_fork(&job, "count layers", count_all, NULL, &fault) == 0;
	if (!running)
		log_line("%s", fault.text);
}

int layer_use(struct container *container, struct disk_usage *usage)
{
	int found = rootfs_usage(container->directory, usage);

	if (found <= 0)
		return found;
	usage->bytes = container->layer.bytes;
	usage->inodes = container->layer.inodes;
	begin();
	return 0;
}
