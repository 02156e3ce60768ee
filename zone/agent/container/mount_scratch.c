/* MountScratch: waits for the disk, then makes its file system and mounts it in a separate process. */
#include "container/mount_scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "container/container.h"
#include "container/job.h"
#include "mounts/scratch.h"
#include "sys/device.h"
#include "sys/name.h"

static struct {
	struct call *call; /* NULL: none is under way */
	char disk[20];
	struct device_wait wait;
	struct job job;
} mounting;

static void finish(const struct fault *fault)
{
	struct call *call = mounting.call;

	mounting.call = NULL;
	call_end(call, fault ? -1 : 0, fault);
}

static void made(struct job *job, const struct fault *fault)
{
	(void)job;
	if (!fault)
		scratch_use(mounting.disk);
	finish(fault);
}

static int make(void *data, struct fault *fault)
{
	return scratch_make(data, fault);
}

static void found(struct device_wait *wait, const struct fault *fault)
{
	struct fault failed;

	(void)wait;
	mounting.job = (struct job){ .done = made };
	if (fault)
		finish(fault);
	else if (job_fork(&mounting.job, "mount scratch disk", make, mounting.disk, &failed) < 0)
		finish(&failed);
}

static int check(const char *untrusted, struct fault *fault)
{
	if (!device_name_valid(untrusted))
		return fault_set(fault, INVALID_ARGUMENT, "mount scratch disk: not a disk's name");
	if (mounting.call)
		return fault_set(fault, FAILED_PRECONDITION, "mount scratch disk: one is being mounted");
	if (*scratch_disk() && strcmp(scratch_disk(), untrusted) != 0)
		return fault_set(fault, FAILED_PRECONDITION, "mount scratch disk: %s is mounted", scratch_disk());
	if (!*scratch_disk() && container_first())
		return fault_set(fault, FAILED_PRECONDITION, "mount scratch disk: there are containers without it");
	return 0;
}

void mount_scratch(struct call *call)
{
	const char *untrusted = call->request->mount_scratch->disk;
	struct fault fault;
	int there;

	if (check(untrusted, &fault) < 0 || *scratch_disk()) {
		call_end(call, *scratch_disk() && strcmp(scratch_disk(), untrusted) == 0 ? 0 : -1, &fault);
		return;
	}
	mounting.call = call;
	snprintf(mounting.disk, sizeof(mounting.disk), "%s", untrusted);
	mounting.wait.done = found;
	there = device_wait_begin(&mounting.wait, mounting.disk, &fault);
	if (there < 0)
		finish(&fault);
	else if (there == 1)
		found(&mounting.wait, NULL);
}
