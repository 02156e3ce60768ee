#include "call.h"

#include <stdlib.h>

#include "link.h"
#include "say.h"

#define OP(name) XENPOD__CHANNEL__V1__REQUEST__OP_##name

static void (*const verbs[])(struct call *) = {
	[OP(CONFIGURE_ZONE)] = configure_zone,
	[OP(CONFIGURE_NETWORK)] = configure_network,
	[OP(CREATE_CONTAINER)] = create_container,
	[OP(START_CONTAINER)] = start_container,
	[OP(SIGNAL_PROCESS)] = signal_process,
	[OP(DELETE_CONTAINER)] = delete_container,
	[OP(EXEC_PROCESS)] = exec_process,
	[OP(DELETE_EXEC)] = delete_exec,
	[OP(RESIZE_TERMINAL)] = resize_terminal,
	[OP(LIST_PROCESSES)] = list_processes,
	[OP(GET_STATS)] = get_stats,
	[OP(GET_FACTS)] = get_facts,
	[OP(POWER_OFF)] = power_off,
	[OP(UPDATE_CONTAINER)] = update_container,
	[OP(DIAL)] = dial,
};

const char *call_begin(uint32_t id, const uint8_t *payload, size_t length)
{
	struct call *call = calloc(1, sizeof(*call));
	struct fault fault;
	unsigned int op;

	if (!call)
		return "no memory for a call";
	*call = (struct call){ .id = id, .epoch = link_epoch() };
	call->request = xenpod__channel__v1__request__unpack(NULL, length, payload);
	if (!call->request) {
		free(call);
		return "CALL is no Request";
	}
	op = (unsigned int)call->request->op_case;
	if (op < sizeof(verbs) / sizeof(verbs[0]) && verbs[op]) {
		verbs[op](call);
	} else {
		fault_set(&fault, UNIMPLEMENTED, "call: %u: this agent does not know it", op);
		call_fail(call, &fault);
	}
	return NULL;
}

void call_reply(struct call *call, Reply *reply)
{
	link_reply(call->epoch, call->id, reply);
	xenpod__channel__v1__request__free_unpacked(call->request, NULL);
	free(call);
}

void call_done(struct call *call)
{
	Reply reply = REPLY_INIT;
	Empty empty = EMPTY_INIT;

	reply.result_case = XENPOD__CHANNEL__V1__REPLY__RESULT_DONE;
	reply.done = &empty;
	call_reply(call, &reply);
}

/* Messages may quote what came from images and files; protobuf strings must be UTF-8. */
static void make_ascii(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || (unsigned char)*text > '~')
			*text = '?';
}

void call_fail(struct call *call, const struct fault *fault)
{
	struct fault clean = *fault;
	Reply reply = REPLY_INIT;
	Error error = ERROR_INIT;

	make_ascii(clean.text);
	error.code = clean.code;
	error.message = clean.text;
	reply.error = &error;
	call_reply(call, &reply);
}

void call_end(struct call *call, int result, const struct fault *fault)
{
	if (result < 0)
		call_fail(call, fault);
	else
		call_done(call);
}

bool call_is_fresh(const struct call *call)
{
	return link_open() && call->epoch == link_epoch();
}
