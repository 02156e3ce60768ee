/* StartContainer: `crun start`. */
#include <stdlib.h>

#include "channel/call.h"
#include "container/container.h"
#include "container/held.h"
#include "container/job.h"
#include "verbs/verbs.h"

struct start {
	struct call *call;
	struct container *container;
	struct job job;
};

static void reply_started(struct call *call, uint32_t pid)
{
	Reply reply = REPLY_INIT;
	Empty empty = EMPTY_INIT;

	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_DONE;
	reply.done = &empty;
	reply.pid = pid;
	call_reply(call, &reply);
}

static void started(struct job *job, const struct fault *fault)
{
	struct start *start = container_of(job, struct start, job);
	struct container *container = start->container;

	container->starting = false;
	job_note(job, &start->call->steps, STEP(CRUN_START));
	if (fault) {
		container->init.started_ns = 0;
		call_fail(start->call, fault);
	} else {
		container->init.state = RUNNING;
		reply_started(start->call, container->init.shown_pid);
	}
	free(start);
	if (container->start_held) {
		container->start_held = false;
		process_exited(&container->init, container->held_status, container->held_ns);
	}
	container_end(container);
}

static struct container *startable(const char *untrusted_id, struct fault *fault)
{
	struct container *container = id_valid(untrusted_id) ? container_find(untrusted_id) : NULL;

	if (!container || container->init.state == PREPARING)
		fault_set(fault, NOT_FOUND, "start container: %.*s: no such container", ID_MAX, untrusted_id);
	else if (container->init.state != CREATED || container->starting || container->deletes)
		fault_set(fault, FAILED_PRECONDITION, "start container: %s: it was started before, or has ended",
			  container->id);
	else
		return container;
	return NULL;
}

void start_container(struct call *call)
{
	const int nothing[3] = { -1, -1, -1 };
	const char *arguments[] = { "start", NULL, NULL };
	struct fault fault;
	struct container *container = startable(call->request->start_container->id, &fault);
	struct start *start;

	if (!container) {
		call_fail(call, &fault);
		return;
	}
	if (held_keep(container, call) || held_start_failed(container, call))
		return;
	call->steps = container->made;
	container->made.count = 0;
	start = calloc(1, sizeof(*start));
	arguments[1] = container->id;
	if (!start) {
		fault_errno(&fault, "start container", container->id);
		call_fail(call, &fault);
		return;
	}
	*start = (struct start){ .call = call, .container = container, .job = { .done = started } };
	container->init.started_ns = wall_ns();
	if (job_start(&start->job, arguments, nothing, &fault) < 0) {
		container->init.started_ns = 0;
		free(start);
		call_fail(call, &fault);
		return;
	}
	container->starting = true;
	container_begin(container, call);
}
