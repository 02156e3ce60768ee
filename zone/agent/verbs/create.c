/* CreateContainer: bundle, disks, mounts, `crun create`.  A failure undoes the earlier steps.  A refusal by crun itself
 * is reported separately: the host treats it as a failure of the container's start. */
#include <stdlib.h>

#include "channel/call.h"
#include "container/bundle.h"
#include "container/container.h"
#include "container/held.h"
#include "container/job.h"
#include "container/moves.h"
#include "container/trash.h"
#include "mounts/mounts.h"
#include "mounts/rootfs.h"
#include "sys/device.h"
#include "sys/file.h"
#include "sys/log.h"
#include "verbs/verbs.h"

struct creation {
	struct call *call; /* NULL: answered */
	struct container *container;
	struct device_wait disk;
	size_t disks; /* number of found disks */
	struct mounts mounts;
	struct job job;
	struct stdio io;
	struct fault fault;
	bool cannot_start; /* the fault is crun's refusal of the configuration */
};

static void cancel_wait(struct container *container)
{
	struct creation *creation = container->creation;
	struct fault fault;

	fault_set(&fault, ABORTED, "create container: %s: it is being deleted", container->id);
	device_wait_cancel(&creation->disk, &fault);
}

/* The host believes that the container exists: its start fails. */
static void fail_answered(struct creation *creation)
{
	struct container *container = creation->container;

	held_failed(container, &creation->fault, creation->cannot_start);
	free(creation);
	container_end(container);
}

static void fail(struct creation *creation)
{
	struct container *container = creation->container;
	struct fault fault;

	stdio_close(&creation->io);
	if (!creation->call) {
		fail_answered(creation);
		return;
	}
	if (mounts_unmount(container->directory, container->id, &fault) < 0 || bundle_remove(container->directory, &fault) < 0)
		log_line("after a failed create: %s", fault.text);
	trash_empty();
	if (creation->cannot_start)
		call_fail_start(creation->call, &creation->fault);
	else
		call_fail(creation->call, &creation->fault);
	free(creation);
	container_free(container);
	containers_changed();
}

static void crun_undone(struct job *job, const struct fault *fault)
{
	if (fault)
		log_line("after a failed create: %s", fault->text);
	fail(container_of(job, struct creation, job));
}

/* Removes leftovers of crun. */
static void undo_crun(struct creation *creation)
{
	const char *const arguments[] = { "delete", "--force", creation->container->id, NULL };
	const int nothing[3] = { -1, -1, -1 };
	struct fault fault;

	if (!crun_has(creation->container->id)) {
		fail(creation);
		return;
	}
	creation->job.done = crun_undone;
	if (job_start(&creation->job, arguments, nothing, &fault) < 0) {
		log_line("after a failed create: %s", fault.text);
		fail(creation);
	}
}

static int take_over(struct creation *creation, struct fault *fault)
{
	struct process *process = &creation->container->init;
	char pid_path[PATH_SIZE + 16];

	if (path_format(pid_path, sizeof(pid_path), "%s/pid", creation->container->directory) < 0)
		return fault_errno(fault, "create container", creation->container->id);
	if (process_read_pid(process, pid_path, fault) < 0)
		return -1;
	if (!creation->call)
		return 0;
	if (stdio_receive_terminal(&creation->io, fault) < 0)
		return -1;
	return process_attach(process, &creation->io, call_is_fresh(creation->call), fault);
}

static void created(struct job *job, const struct fault *fault)
{
	struct creation *creation = container_of(job, struct creation, job);
	struct container *container = creation->container;

	job_note(job, creation->call ? &creation->call->steps : &container->made, STEP(CRUN_CREATE));
	if (fault)
		creation->fault = *fault;
	creation->cannot_start = fault && job_refused(job);
	if (fault || take_over(creation, &creation->fault) < 0) {
		container->init.pid = 0;
		undo_crun(creation);
		return;
	}
	container->init.state = CREATED;
	if (creation->call)
		call_reply_created(creation->call, &container->init);
	stdio_close(&creation->io);
	free(creation);
	container_adopt(&container->init);
	held_made(container);
	container_end(container);
}

/* Answers during crun's work: the host has other work meanwhile. */
static int answer_early(struct creation *creation, struct fault *fault)
{
	CreateContainer *request = creation->call->request->create_container;
	struct container *container = creation->container;

	if (!request->answer_early || request->tty)
		return 0;
	if (process_attach(&container->init, &creation->io, call_is_fresh(creation->call), fault) < 0)
		return -1;
	held_begin(container);
	call_reply_created(creation->call, &container->init);
	creation->call = NULL;
	return 0;
}

/* The container is unusable, although crun has made it. */
static void not_attached(struct job *job, const struct fault *fault)
{
	(void)fault;
	undo_crun(container_of(job, struct creation, job));
}

static int run_crun(struct creation *creation, struct fault *fault)
{
	struct container *container = creation->container;
	CreateContainer *request = creation->call->request->create_container;
	char pid_path[PATH_SIZE + 16];
	const char *arguments[] = {
		"create", "--bundle", container->directory, "--pid-file", pid_path, NULL, NULL, NULL, NULL,
	};
	size_t count = 5;

	if (path_format(pid_path, sizeof(pid_path), "%s/pid", container->directory) < 0)
		return fault_errno(fault, "create container", container->id);
	if (stdio_open(&creation->io, request->tty, request->stdin, fault) < 0)
		return -1;
	if (request->tty) {
		arguments[count++] = "--console-socket";
		arguments[count++] = creation->io.console_path;
	}
	arguments[count] = container->id;
	creation->job.done = created;
	if (job_start(&creation->job, arguments, creation->io.child, fault) < 0)
		return -1;
	stdio_close_child_ends(&creation->io);
	if (answer_early(creation, &creation->fault) < 0)
		creation->job.done = not_attached;
	return 0;
}

static int change_owners(void *data, struct fault *fault)
{
	struct creation *creation = data;

	return mounts_change_owners(&creation->mounts, creation->container->directory,
				    creation->call->request->create_container, fault);
}

static void owners_changed(struct job *job, const struct fault *fault)
{
	struct creation *creation = container_of(job, struct creation, job);
	struct disk_usage given;

	job_note(job, &creation->call->steps, STEP(OWNERS));
	if (fault)
		creation->fault = *fault;
	else if (rootfs_usage(creation->container->directory, &given) == 0)
		creation->container->inodes_given = given.inodes;
	if (fault || run_crun(creation, &creation->fault) < 0)
		fail(creation);
}

static int mount_all(struct creation *creation, struct fault *fault)
{
	struct call *call = creation->call;
	int needs_chown;

	steps_next(&call->steps, STEP(DISKS), call->begun_ns);
	needs_chown = mounts_make(&creation->mounts, creation->container->directory, call->request->create_container,
				  fault);
	steps_next(&call->steps, STEP(ROOTFS), call->begun_ns);
	if (needs_chown <= 0)
		return needs_chown < 0 ? -1 : run_crun(creation, fault);
	creation->job.done = owners_changed;
	return job_fork(&creation->job, "change owners", change_owners, creation, fault);
}

static void wait_for_disks(struct creation *creation);

static void disk_found(struct device_wait *wait, const struct fault *fault)
{
	struct creation *creation = container_of(wait, struct creation, disk);

	creation->container->cancel = NULL;
	if (fault) {
		creation->fault = *fault;
		fail(creation);
		return;
	}
	creation->disks++;
	wait_for_disks(creation);
}

static void wait_for_disks(struct creation *creation)
{
	const char *name;
	int there = 1;

	creation->disk.done = disk_found;
	while ((name = mounts_disk(creation->call->request->create_container, creation->disks))) {
		there = device_wait_begin(&creation->disk, name, &creation->fault);
		if (there != 1)
			break;
		creation->disks++;
	}
	if (there == 0) {
		creation->container->creation = creation;
		creation->container->cancel = cancel_wait;
	} else if (there < 0 || mount_all(creation, &creation->fault) < 0) {
		fail(creation);
	}
}

static struct creation *begin(struct call *call, struct fault *fault)
{
	CreateContainer *request = call->request->create_container;
	struct creation *creation;

	if (bundle_check(request, fault) < 0 || mounts_check(request, fault) < 0)
		return NULL;
	if (container_find(request->id)) {
		fault_set(fault, ALREADY_EXISTS, "create container: %s: it exists", request->id);
		return NULL;
	}
	creation = calloc(1, sizeof(*creation));
	if (!creation) {
		fault_errno(fault, "create container", request->id);
		return NULL;
	}
	*creation = (struct creation){ .call = call, .io = STDIO_NONE, .container = container_new(request->id, fault) };
	if (!creation->container) {
		free(creation);
		return NULL;
	}
	container_begin(creation->container, call);
	return creation;
}

void create_container(struct call *call)
{
	struct fault fault;
	struct creation *creation = begin(call, &fault);

	if (!creation) {
		call_fail(call, &fault);
		return;
	}
	moves_expect();
	if (bundle_write(creation->container->directory, call->request->create_container, &creation->fault) < 0)
		fail(creation);
	else
		wait_for_disks(creation);
}
