#include "channel/call.h"

#include <stdlib.h>

#include "channel/link.h"
#include "channel/times.h"
#include "sys/loop.h"

static verb *const *verbs;
static size_t verb_count;

void calls_serve(verb *const *all, size_t count)
{
	verbs = all;
	verb_count = count;
}

const char *call_begin(uint32_t id, const uint8_t *payload, size_t length)
{
	struct call *call = calloc(1, sizeof(*call));

	if (!call)
		return "no memory for a call";
	*call = (struct call){ .id = id, .epoch = link_epoch(), .begun_ns = now_ns() };
	call->request = xenpod__channel__v1__request__unpack(NULL, length, payload);
	if (!call->request) {
		free(call);
		return "CALL is no Request";
	}
	call_again(call);
	return NULL;
}

void call_again(struct call *call)
{
	unsigned int op = (unsigned int)call->request->op_case;
	struct fault fault;

	if (op < verb_count && verbs[op]) {
		verbs[op](call);
	} else {
		fault_set(&fault, UNIMPLEMENTED, "call: %u: this agent does not know it", op);
		call_fail(call, &fault);
	}
}

void call_reply(struct call *call, Reply *reply)
{
	struct times times;

	reply->n_steps = times_of(&times, &call->steps);
	reply->steps = times.list;
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

/* A message may quote bytes from images and files, but a protobuf string must be UTF-8. */
static void make_ascii(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || (unsigned char)*text > '~')
			*text = '?';
}

static void reply_error(struct call *call, const struct fault *fault, bool cannot_start)
{
	struct fault clean = *fault;
	Reply reply = REPLY_INIT;
	Error error = ERROR_INIT;

	make_ascii(clean.text);
	error.code = clean.code;
	error.message = clean.text;
	error.cannot_start = cannot_start;
	reply.error = &error;
	call_reply(call, &reply);
}

void call_fail(struct call *call, const struct fault *fault)
{
	reply_error(call, fault, false);
}

void call_fail_start(struct call *call, const struct fault *fault)
{
	reply_error(call, fault, true);
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
