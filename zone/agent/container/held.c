#include "container/held.h"

/* Output before crun's end may be crun's. */
void held_begin(struct container *container)
{
	output_hold(container->init.out);
	output_hold(container->init.err);
	container->init.state = CREATED;
	container->creating = true;
}

bool held_keep(struct container *container, struct call *call)
{
	if (!container->creating)
		return false;
	call->next = container->held;
	container->held = call;
	return true;
}

/* In their order. */
static void go_on(struct container *container, bool made)
{
	struct call *calls = NULL;

	container->creating = false;
	output_go_on(container->init.out, made);
	output_go_on(container->init.err, made);
	while (container->held) {
		struct call *call = container->held;

		container->held = call->next;
		call->next = calls;
		calls = call;
	}
	while (calls) {
		struct call *call = calls;

		calls = call->next;
		call_again(call);
	}
}

void held_made(struct container *container)
{
	if (container->creating)
		go_on(container, true);
}

void held_failed(struct container *container, const struct fault *fault, bool refused)
{
	container->failed = true;
	container->refused = refused;
	container->failure = *fault;
	if (!refused)
		container->failure.code = INTERNAL; /* a retry is useless */
	go_on(container, false);
}

bool held_start_failed(const struct container *container, struct call *call)
{
	if (!container->failed)
		return false;
	if (container->refused)
		call_fail_start(call, &container->failure);
	else
		call_fail(call, &container->failure);
	return true;
}
