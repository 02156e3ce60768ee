#include "channel/link.h"

#include <stdlib.h>
#include <string.h>

#include "channel/inbox.h"
#include "channel/outbox.h"
#include "channel/stream.h"
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
	CLOSING, /* sends what is queued, then hangs up */
};

static struct {
	const struct transport *transport;
	const Hello *hello;
	call_handler *call;
	enum state state;
	uint64_t epoch;
	bool can_read;
	bool can_write;
	uint32_t calls[CALLS_MAX]; /* the open ones; 0: a free place */
} line;

void link_start(const struct transport *transport, const Hello *hello, call_handler *handler)
{
	line.transport = transport;
	line.hello = hello;
	line.call = handler;
}

uint64_t link_epoch(void)
{
	return line.epoch;
}

bool link_open(void)
{
	return line.state == OPEN;
}

bool link_flushed(void)
{
	return line.state == DOWN || outbox_empty();
}

void link_can_read(void)
{
	line.can_read = true;
}

void link_can_write(void)
{
	line.can_write = true;
}

void link_up(void)
{
	line.epoch++;
	line.state = GREETING;
	line.can_read = true;
	line.can_write = true;
}

void link_down(void)
{
	if (line.state == DOWN)
		return;
	line.state = DOWN;
	line.can_read = line.can_write = false;
	memset(line.calls, 0, sizeof(line.calls));
	inbox_clear();
	outbox_clear();
	streams_disconnected();
}

static void close_link(void)
{
	line.transport->hang_up();
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
		if (line.calls[i] == id)
			return "call id is open already";
		if (!line.calls[i])
			place = &line.calls[i];
	}
	if (!place)
		return "too many open calls";
	*place = id;
	return NULL;
}

static void call_close(uint32_t id)
{
	for (size_t i = 0; id && i < CALLS_MAX; i++)
		if (line.calls[i] == id)
			line.calls[i] = 0;
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
	if (epoch == line.epoch && line.state == OPEN)
		enqueue(FRAME_REPLY, call, &reply->base);
}

void link_event(const Event *event)
{
	if (line.state == OPEN)
		enqueue(FRAME_EVENT, 0, &event->base);
}

/* Sends some bytes.  True while the transport takes more and there is more. */
static bool transmit(void)
{
	const uint8_t *bytes;
	size_t length = outbox_next(&bytes, line.state == OPEN);
	ssize_t n;

	if (!length) {
		if (line.state == CLOSING)
			close_link();
		return false;
	}
	n = line.transport->write(bytes, length);
	if (n < 0)
		close_link();
	if (n == 0)
		line.can_write = false;
	if (n <= 0)
		return false;
	call_close(outbox_sent((size_t)n));
	return true;
}

/* Receiving. */

static bool greet(const uint8_t *payload, size_t length)
{
	Hello *untrusted = xenpod__channel__v1__hello__unpack(NULL, length, payload);
	Hello answer = *line.hello;
	bool common;

	if (!untrusted)
		return violated("HELLO is no Hello");
	common = untrusted->version_min <= PROTOCOL_VERSION && untrusted->version_max >= PROTOCOL_VERSION;
	xenpod__channel__v1__hello__free_unpacked(untrusted, NULL);
	answer.version_min = answer.version_max = common ? PROTOCOL_VERSION : 0;
	enqueue(FRAME_HELLO, 0, &answer.base);
	if (line.state == DOWN)
		return false;
	line.state = common ? OPEN : CLOSING;
	if (common)
		streams_connected();
	else
		log_line("channel: no common version");
	return common;
}

static bool dispatch(const struct frame_head *frame, const uint8_t *payload)
{
	const char *wrong;

	if (line.state == GREETING)
		return frame->type == FRAME_HELLO ? greet(payload, frame->length) :
						    violated("first frame is not HELLO");
	switch (frame->type) {
	case FRAME_CALL:
		wrong = call_open(frame->stream);
		if (!wrong)
			wrong = line.call(frame->stream, payload, frame->length);
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
	return wrong ? violated(wrong) : line.state == OPEN;
}

/* Serves the next frame, if it is complete.  False when the connection has ended. */
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

/* Receives some bytes or serves one frame.  True while there is more to receive. */
static bool receive(void)
{
	uint8_t *buffer;
	size_t size;
	ssize_t n;

	if (line.state == CLOSING)
		return false;
	if (!inbox_empty())
		return serve();
	buffer = inbox_buffer(&size);
	n = line.transport->read(buffer, size);
	if (n < 0)
		close_link();
	if (n == 0)
		line.can_read = false;
	if (n <= 0)
		return false;
	inbox_filled((size_t)n);
	return true;
}

bool link_step(void)
{
	bool reading = true, writing = true;

	for (int i = 0; i < STEPS_A_TURN && line.state != DOWN && (reading || writing); i++) {
		reading = line.can_read && receive();
		writing = line.can_write && transmit();
	}
	return line.state != DOWN && (reading || writing);
}
