/* ListProcesses: waits for operations of earlier connections; its answer is then final. */
#include <stdlib.h>

#include "channel/call.h"
#include "channel/link.h"
#include "container/container.h"
#include "verbs/dial.h"
#include "verbs/verbs.h"

static struct call *waiting;

/* One process, with all structures of its message. */
struct entry {
	ProcessMessage message;
	ProcessRef ref;
	ProcessCreated created;
	ProcessExited exited;
	ProcessRef exited_ref;
};

static void describe(struct entry *entry, const struct process *process)
{
	static const Xenpod__Channel__V1__ProcessState states[] = {
		[CREATED] = XENPOD__CHANNEL__V1__PROCESS_STATE__PROCESS_STATE_CREATED,
		[RUNNING] = XENPOD__CHANNEL__V1__PROCESS_STATE__PROCESS_STATE_RUNNING,
		[EXITED] = XENPOD__CHANNEL__V1__PROCESS_STATE__PROCESS_STATE_EXITED,
	};

	entry->message = (ProcessMessage)PROCESS_INIT;
	process_fill_ref(process, &entry->ref);
	process_fill_created(process, &entry->created);
	entry->message.process = &entry->ref;
	entry->message.created = &entry->created;
	entry->message.state = states[process->state];
	entry->message.started_at_ns = process->started_ns;
	if (process->state == EXITED) {
		process_fill_exited(process, &entry->exited_ref, &entry->exited);
		entry->message.exited = &entry->exited;
	}
}

static void add(struct entry *entries, ProcessMessage **messages, size_t *count, const struct process *process)
{
	if (process->state == PREPARING)
		return;
	describe(&entries[*count], process);
	messages[*count] = &entries[*count].message;
	(*count)++;
}

static void answer(struct call *call)
{
	enum { MOST = CONTAINERS_MAX + EXECS_MAX };
	struct entry *entries = calloc(MOST, sizeof(*entries));
	ProcessMessage **messages = calloc(MOST, sizeof(*messages));
	Dialed connections[CONNECTIONS_MAX], *connection_messages[CONNECTIONS_MAX];
	ProcessList list = PROCESS_LIST_INIT;
	Reply reply = REPLY_INIT;
	struct fault fault;

	if (!entries || !messages) {
		fault_errno(&fault, "list processes", "answer");
		call_fail(call, &fault);
	} else {
		for (struct container *c = container_first(); c; c = c->next) {
			add(entries, messages, &list.n_processes, &c->init);
			for (struct exec *exec = c->execs; exec; exec = exec->next)
				add(entries, messages, &list.n_processes, &exec->process);
		}
		list.processes = messages;
		list.n_connections = connections_list(connections);
		for (size_t i = 0; i < list.n_connections; i++)
			connection_messages[i] = &connections[i];
		list.connections = connection_messages;
		reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_PROCESSES;
		reply.processes = &list;
		call_reply(call, &reply);
	}
	free(messages);
	free(entries);
}

/* Whether a call came over an earlier connection. */
static bool old_calls(const struct call *calls)
{
	for (; calls; calls = calls->next)
		if (calls->epoch != link_epoch())
			return true;
	return false;
}

/* Whether an operation of an earlier connection is still under way. */
static bool old_work(void)
{
	for (struct container *c = container_first(); c; c = c->next) {
		if ((c->jobs && c->jobs_epoch != link_epoch()) || old_calls(c->deletes))
			return true;
		for (struct exec *exec = c->execs; exec; exec = exec->next)
			if (old_calls(exec->deletes))
				return true;
	}
	return false;
}

static void answer_waiting(struct waiter *waiter)
{
	struct call *calls = waiting;

	if (old_work())
		return;
	containers_wait_end(waiter);
	waiting = NULL;
	while (calls) {
		struct call *call = calls;

		calls = call->next;
		answer(call);
	}
}

static struct waiter waiter = { .changed = answer_waiting };

static struct container *old_wait(void)
{
	struct container *c = container_first();

	while (c && !(c->cancel && c->jobs_epoch != link_epoch()))
		c = c->next;
	return c;
}

void list_processes(struct call *call)
{
	struct container *container;

	/* The host will not attach the disks for an earlier connection's creation. */
	while ((container = old_wait()))
		container->cancel(container);
	if (!waiting)
		containers_wait(&waiter);
	call->next = waiting;
	waiting = call;
	answer_waiting(&waiter);
}
