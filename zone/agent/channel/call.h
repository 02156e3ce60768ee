/* Control calls: a received Request, until its Reply is sent. */
#ifndef CHANNEL_CALL_H
#define CHANNEL_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/messages.h"
#include "sys/fault.h"
#include "sys/steps.h"

struct call {
	uint32_t id;
	uint64_t epoch; /* the connection of the call */
	Request *request;
	uint64_t begun_ns; /* time of arrival */
	struct steps steps; /* reported in the reply */
	struct call *next; /* for a list of waiting calls */
};

/* Answers the call, now or later. */
typedef void verb(struct call *call);

/* The verbs by the number of their Request's op; NULL for unknown ops.  Registered once, at the start. */
void calls_serve(verb *const *verbs, size_t count);
/* Parses a call and starts its verb; a call_handler. */
const char *call_begin(uint32_t id, const uint8_t *payload, size_t length);

/* Handles the call again: its awaited event has come. */
void call_again(struct call *call);

/* Each answers the call and frees it. */
void call_reply(struct call *call, Reply *reply);
void call_done(struct call *call);
void call_fail(struct call *call, const struct fault *fault);
/* call_fail for a CreateContainer whose configuration cannot be run: see Error.cannot_start. */
void call_fail_start(struct call *call, const struct fault *fault);
/* call_fail if the result is negative, else call_done. */
void call_end(struct call *call, int result, const struct fault *fault);

/* Whether the call's connection is the current one. */
bool call_is_fresh(const struct call *call);

#endif
