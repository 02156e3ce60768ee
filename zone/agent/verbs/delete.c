/* DeleteContainer: kill, `crun delete`, unmount, remove.  Several calls may wait for the removal of one container. */
#include <signal.h>
#include <stdlib.h>

#include "channel/call.h"
#include "container/bundle.h"
#include "container/container.h"
#include "container/job.h"
#include "container/trash.h"
#include "mounts/file_volumes.h"
#include "mounts/mounts.h"
#include "sys/log.h"
#include "verbs/verbs.h"

#define KILL_DEADLINE_NS (10 * SECOND_NS)

struct deletion {
	struct container *container;
	struct job job;
};

static void fail_all(struct container *container, const struct fault *fault)
{
	timer_stop(&container->delete_deadline);
	while (container->deletes) {
		struct call *call = container->deletes;

		container->deletes = call->next;
		call_fail(call, fault);
	}
	containers_changed();
}

static void remove_container(struct container *container)
{
	struct fault fault;

	if (mounts_unmount(container->directory, container->id, &fault) < 0 ||
	    bundle_remove(container->directory, &fault) < 0 ||
	    file_volumes_forget(container->id, &fault) < 0)
		fail_all(container, &fault);
	else
		container_free(container);
	trash_empty();
	containers_changed();
}

static void deleted(struct job *job, const struct fault *fault)
{
	struct deletion *deletion = container_of(job, struct deletion, job);
	struct container *container = deletion->container;

	free(deletion);
	container->jobs--;
	if (fault)
		fail_all(container, fault);
	else
		remove_container(container);
}

static void on_deadline(struct timer *timer)
{
	struct container *container = container_of(timer, struct container, delete_deadline);
	struct fault fault;

	fault_set(&fault, DEADLINE_EXCEEDED, "delete container: %s: it did not end within 10 s of SIGKILL",
		  container->id);
	fail_all(container, &fault);
}

static int run_crun(struct container *container, struct fault *fault)
{
	const char *const arguments[] = { "delete", "--force", container->id, NULL };
	const int nothing[3] = { -1, -1, -1 };
	struct deletion *deletion = calloc(1, sizeof(*deletion));

	if (!deletion)
		return fault_errno(fault, "delete container", container->id);
	*deletion = (struct deletion){ .container = container, .job = { .done = deleted } };
	if (job_start(&deletion->job, arguments, nothing, fault) < 0) {
		free(deletion);
		return -1;
	}
	container_begin(container, container->deletes);
	return 0;
}

/* Called after the end of each operation of the container. */
static void go_on(struct container *container)
{
	struct fault fault;

	if (container->jobs) {
		if (container->cancel)
			container->cancel(container);
		return;
	}
	if (container->init.pid) {
		container->delete_deadline.fire = on_deadline;
		if (!container->delete_deadline.armed)
			timer_arm(&container->delete_deadline, KILL_DEADLINE_NS);
		if (process_signal(&container->init, SIGKILL, false, &fault) < 0)
			fail_all(container, &fault);
		return;
	}
	timer_stop(&container->delete_deadline);
	if (!crun_has(container->id))
		remove_container(container);
	else if (run_crun(container, &fault) < 0)
		fail_all(container, &fault);
}

void delete_container(struct call *call)
{
	const char *untrusted_id = call->request->delete_container->id;
	struct container *container = id_valid(untrusted_id) ? container_find(untrusted_id) : NULL;
	struct fault fault;

	if (!id_valid(untrusted_id)) {
		fault_set(&fault, INVALID_ARGUMENT, "delete container: not an id");
		call_fail(call, &fault);
	} else if (!container) {
		/* Its files may have come before its creation. */
		call_end(call, file_volumes_forget(untrusted_id, &fault), &fault);
	} else {
		call->next = container->deletes;
		container->deletes = call;
		container->remove = go_on;
		go_on(container);
	}
}
