#include "channel/link.h"

#include <stdlib.h>
#include <string.h>

#include "channel/inbox.h"
#include "channel/outbox.h"
#include "channel/stream.h"
#include "channel/times.h"
#include "channel/wire.h"
#include "sys/log.h"
#include "sys/loop.h"

enum {
	CALLS_MAX = 64,
	STEPS_A_TURN = 64,
};

enum state {
	DOWN,
	GREETING, /* waits for the host's HELLO */
	OPEN,
	CLOSING, /* sends the queue, then hangs up */
};

static struct {
	const struct transport *transport;
	const Hello *hello;
	const struct steps *boot;
	call_handler *call;
	enum state state;
	uint64_t epoch;
	bool can_read;
	bool can_write;
	uint32_t calls[CALLS_MAX]; /* the open calls; 0: a free place */
} current;

void link_start(const struct transport *transport, const Hello *hello, const struct steps *boot, call_handler *handler)
{
	current.transport = transport;
	current.hello = hello;
	current.boot = boot;
	current.call = handler;
}

uint64_t link_epoch(void)
{
	return current.epoch;
}

bool link_open(void)
{
	return current.state == OPEN;
}

bool link_flushed(void)
{
	return current.state == DOWN || outbox_empty();
}

void link_can_read(void)
{
	current.can_read = true;
}

void link_can_write(void)
{
	current.can_write = true;
}

void link_up(void)
{
	current.epoch++;
	current.state = GREETING;
	current.can_read = true;
	current.can_write = true;
}

void link_down(void)
{
	if (current.state == DOWN)
		return;
	current.state = DOWN;
	current.can_read = current.can_write = false;
	memset(current.calls, 0, sizeof(current.calls));
	inbox_clear();
	outbox_clear();
	streams_disconnected();
}

static void close_link(void)
{
	current.transport->hang_up();
	link_down();
}

static bool violated(const char *why)
{
	log_line("channel: protocol violation: %s", why);
	close_link();
	return false;
}

/* Open calls. */

static const char *call_open(uint32_t id)
{
	uint32_t *place = NULL;

	for (size_t i = 0; i < CALLS_MAX; i++) {
		if (current.calls[i] == id)
			return "call id is open already";
		if (!current.calls[i])
			place = &current.calls[i];
	}
	if (!place)
		return "too many open calls";
	*place = id;
	return NULL;
}

static void call_close(uint32_t id)
{
	for (size_t i = 0; id && i < CALLS_MAX; i++)
		if (current.calls[i] == id)
			current.calls[i] = 0;
}

/* Sending. */

static void enqueue(enum frame_type type, uint32_t stream, const ProtobufCMessage *message)
{
	if (outbox_add(type, stream, message) == 0)
		return;
	log_line("channel: no memory for a message");
	close_link();
}

void link_reply(uint64_t epoch, uint32_t call, const Reply *reply)
{
	if (epoch == current.epoch && current.state == OPEN)
		enqueue(FRAME_REPLY, call, &reply->base);
}

void link_event(const Event *event)
{
	if (current.state == OPEN)
		enqueue(FRAME_EVENT, 0, &event->base);
}

/* Sends some bytes.  True while the transport takes more and more are left. */
static bool transmit(void)
{
	const uint8_t *bytes;
	size_t length = outbox_next(&bytes, current.state == OPEN);
	ssize_t n;

	if (!length) {
		if (current.state == CLOSING)
			close_link();
		return false;
	}
	n = current.transport->write(bytes, length);
	if (n < 0)
		close_link();
	if (n == 0)
		current.can_write = false;
	if (n <= 0)
		return false;
	call_close(outbox_sent((size_t)n));
	return true;
}

/* Receiving. */

static bool greet(const uint8_t *payload, size_t length)
{
	Hello *untrusted = xenpod__channel__v1__hello__unpack(NULL, length, payload);
	Hello answer = *current.hello;
	struct times times;
	bool common;

	if (!untrusted)
		return violated("HELLO is no Hello");
	common = untrusted->version_min <= PROTOCOL_VERSION && untrusted->version_max >= PROTOCOL_VERSION;
	xenpod__channel__v1__hello__free_unpacked(untrusted, NULL);
	answer.version_min = answer.version_max = common ? PROTOCOL_VERSION : 0;
	answer.n_steps = times_of(&times, current.boot);
	answer.steps = times.list;
	enqueue(FRAME_HELLO, 0, &answer.base);
	if (current.state == DOWN)
		return false;
	current.state = common ? OPEN : CLOSING;
	if (common)
		streams_connected();
	else
		log_line("channel: no common version");
	return common;
}

static bool dispatch(const struct frame_head *frame, const uint8_t *payload)
{
	const char *wrong;

	if (current.state == GREETING)
		return frame->type == FRAME_HELLO ? greet(payload, frame->length) :
						    violated("first frame is not HELLO");
	switch (frame->type) {
	case FRAME_CALL:
		wrong = call_open(frame->stream);
		if (!wrong)
			wrong = current.call(frame->stream, payload, frame->length);
		break;
	case FRAME_DATA:
		wrong = stream_data(frame->stream, u64_unpack(payload), payload + OFFSET_SIZE,
				    frame->length - OFFSET_SIZE, frame->flags & FLAG_FIN);
		break;
	case FRAME_CREDIT:
		wrong = stream_credit(frame->stream, u64_unpack(payload), u64_unpack(payload + 8),
				      frame->flags & FLAG_FIN);
		break;
	default:
		wrong = "HELLO for the second time";
	}
	return wrong ? violated(wrong) : current.state == OPEN;
}

/* Serves the next frame, if complete.  False: the connection has ended. */
static bool serve(void)
{
	struct frame_head frame;
	const char *wrong;
	uint8_t *payload;
	bool alive;

	switch (inbox_take(&frame, &payload, &wrong)) {
	case 1:
		alive = dispatch(&frame, payload);
		free(payload);
		return alive;
	case 0:
		return true;
	default:
		return violated(wrong);
	}
}

/* Receives some bytes or serves one frame.  True while more can be received. */
static bool receive(void)
{
	uint8_t *buffer;
	size_t size;
	ssize_t n;

	if (current.state == CLOSING)
		return false;
	if (!inbox_empty())
		return serve();
	buffer = inbox_buffer(&size);
	n = current.transport->read(buffer, size);
	if (n < 0)
		close_link();
	if (n == 0)
		current.can_read = false;
	if (n <= 0)
		return false;
	inbox_filled((size_t)n);
	return true;
}

bool link_step(void)
{
	bool reading = true, writing = true;

	for (int i = 0; i < STEPS_A_TURN && current.state != DOWN && (reading || writing); i++) {
		reading = current.can_read && receive();
		writing = current.can_write && transmit();
	}
	return current.state != DOWN && (reading || writing);
}
