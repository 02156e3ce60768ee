/* Control calls: a Request that came, until it is answered with a Reply. */
#ifndef CALL_H
#define CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "messages.h"

struct call {
	uint32_t id;
	uint64_t epoch; /* the connection it came over */
	Request *request;
	struct call *next; /* for whoever keeps it waiting */
};

/* Parses and starts it; the text says what rule of the channel it breaks. */
const char *call_begin(uint32_t id, const uint8_t *payload, size_t length);

/* Each answers the call and frees it. */
void call_reply(struct call *call, Reply *reply);
void call_done(struct call *call);
void call_fail(struct call *call, const struct fault *fault);
/* call_done or call_fail. */
void call_end(struct call *call, int result, const struct fault *fault);

/* Its connection is the current one. */
bool call_is_fresh(const struct call *call);

/* The verbs, one file each; every one answers its call, now or later. */
void configure_zone(struct call *call);
void configure_network(struct call *call);
void create_container(struct call *call);
void start_container(struct call *call);
void signal_process(struct call *call);
void delete_container(struct call *call);
void exec_process(struct call *call);
void delete_exec(struct call *call);
void resize_terminal(struct call *call);
void list_processes(struct call *call);
void get_stats(struct call *call);
void get_facts(struct call *call);
void power_off(struct call *call);
void update_container(struct call *call);
void dial(struct call *call);

#endif
