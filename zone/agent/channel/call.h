/* Control calls: a Request that came, until it is answered with a Reply. */
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
	uint64_t epoch; /* the connection it came over */
	Request *request;
	uint64_t begun_ns; /* when it came */
	struct steps steps; /* that the reply tells of */
	struct call *next; /* for whoever keeps it waiting */
};

/* Answers its call, now or later. */
typedef void verb(struct call *call);

/* The verbs by the number of their Request's op; NULL for one that is not known.  Registered once, at the start. */
void calls_serve(verb *const *verbs, size_t count);
/* Parses a call and starts its verb; a call_handler. */
const char *call_begin(uint32_t id, const uint8_t *payload, size_t length);

/* Handles it anew: what it waited for has come. */
void call_again(struct call *call);

/* Each answers the call and frees it. */
void call_reply(struct call *call, Reply *reply);
void call_done(struct call *call);
void call_fail(struct call *call, const struct fault *fault);
/* call_fail of a CreateContainer whose configuration cannot be run: see Error.cannot_start. */
void call_fail_start(struct call *call, const struct fault *fault);
/* call_fail if the result is negative, else call_done. */
void call_end(struct call *call, int result, const struct fault *fault);

/* Its connection is the current one. */
bool call_is_fresh(const struct call *call);

#endif
