#include "link.h"

#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "loop.h"
#include "say.h"
#include "stream.h"
#include "wire.h"

enum {
	CALLS_MAX = 64,
	STEPS_A_TURN = 64,
};

struct outgoing {
	struct outgoing *next;
	size_t length;
	uint32_t call; /* the call that this frame answers, or 0 */
	uint8_t bytes[];
};

enum state {
	DOWN,
	GREETING, /* waits for the host's HELLO */
	OPEN,
	PARTING, /* sends what is queued, then hangs up */
};

static struct {
	const struct transport *transport;
	const Hello *hello;
	enum state state;
	uint64_t epoch;
	bool can_read;
	bool can_write;
	uint32_t calls[CALLS_MAX]; /* open ones; 0 is a free place */
} line;

/* What is being received. */
static struct {
	uint8_t buffer[SLICE_MAX];
	size_t start;
	size_t end;
	uint8_t head[HEAD_SIZE];
	size_t head_length;
	struct frame_head frame;
	uint8_t *payload;
	size_t payload_length;
} rx;

/* What is being sent: the queue's first, or the slice. */
static struct {
	struct outgoing *first;
	struct outgoing **last;
	uint8_t slice[HEAD_SIZE + OFFSET_SIZE + SLICE_MAX];
	size_t slice_length;
	size_t sent;
} tx = { .last = &tx.first };

void link_start(const struct transport *transport, const Hello *hello)
{
	line.transport = transport;
	line.hello = hello;
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
	return line.state == DOWN || (!tx.first && !tx.slice_length);
}

void link_can_read(void)
{
	line.can_read = true;
}

void link_can_write(void)
{
	line.can_write = true;
}

static void frame_reset(void)
{
	free(rx.payload);
	rx.payload = NULL;
	rx.payload_length = 0;
	rx.head_length = 0;
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
	frame_reset();
	rx.start = rx.end = 0;
	while (tx.first) {
		struct outgoing *frame = tx.first;

		tx.first = frame->next;
		free(frame);
	}
	tx.last = &tx.first;
	tx.slice_length = tx.sent = 0;
	streams_disconnected();
}

static void close_link(void)
{
	line.transport->hang_up();
	link_down();
}

static bool violated(const char *why)
{
	say("channel: protocol violation: %s", why);
	close_link();
	return false;
}

/* -- calls that are open ------------------------------------------------------------------- */

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

/* -- sending ------------------------------------------------------------------------------- */

static void enqueue(enum frame_type type, uint32_t stream, const ProtobufCMessage *message)
{
	struct frame_head head = { .type = (uint8_t)type, .stream = stream };
	size_t length = protobuf_c_message_get_packed_size(message);
	struct outgoing *frame = malloc(sizeof(*frame) + HEAD_SIZE + length);

	if (!frame) {
		say("channel: no memory for a frame of %zu bytes", length);
		close_link();
		return;
	}
	head.length = (uint32_t)length;
	frame->next = NULL;
	frame->length = HEAD_SIZE + length;
	frame->call = type == FRAME_REPLY ? stream : 0;
	frame_pack(frame->bytes, &head);
	protobuf_c_message_pack(message, frame->bytes + HEAD_SIZE);
	*tx.last = frame;
	tx.last = &frame->next;
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

static void sent_all(void)
{
	struct outgoing *frame = tx.first;

	tx.sent = 0;
	if (tx.slice_length) {
		tx.slice_length = 0;
		return;
	}
	call_close(frame->call);
	tx.first = frame->next;
	if (!tx.first)
		tx.last = &tx.first;
	free(frame);
}

/* True while the transport takes more and there is more. */
static bool transmit(void)
{
	const uint8_t *bytes;
	size_t length;
	ssize_t n;

	if (!tx.slice_length && !tx.first && line.state == OPEN)
		tx.slice_length = streams_next(tx.slice);
	if (!tx.slice_length && !tx.first) {
		if (line.state == PARTING)
			close_link();
		return false;
	}
	bytes = tx.slice_length ? tx.slice : tx.first->bytes;
	length = tx.slice_length ? tx.slice_length : tx.first->length;
	n = line.transport->write(bytes + tx.sent, length - tx.sent);
	if (n < 0) {
		close_link();
		return false;
	}
	if (n == 0) {
		line.can_write = false;
		return false;
	}
	tx.sent += (size_t)n;
	if (tx.sent == length)
		sent_all();
	return true;
}

/* -- receiving ----------------------------------------------------------------------------- */

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
	line.state = common ? OPEN : PARTING;
	if (common)
		streams_connected();
	else
		say("channel: no common version");
	return common;
}

static bool dispatch(const struct frame_head *frame, const uint8_t *payload)
{
	const char *wrong = frame_check_payload(frame, payload);

	if (wrong)
		return violated(wrong);
	if (line.state == GREETING)
		return frame->type == FRAME_HELLO ? greet(payload, frame->length) :
						    violated("first frame is not HELLO");
	switch (frame->type) {
	case FRAME_CALL:
		wrong = call_open(frame->stream);
		if (!wrong)
			wrong = call_begin(frame->stream, payload, frame->length);
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

static void take(uint8_t *to, size_t *have, size_t want)
{
	size_t n = rx.end - rx.start < want - *have ? rx.end - rx.start : want - *have;

	if (n)
		memcpy(to + *have, rx.buffer + rx.start, n);
	rx.start += n;
	*have += n;
}

/* Takes what one frame still lacks.  False when the connection has ended. */
static bool parse(void)
{
	const char *wrong;
	uint8_t *payload;
	bool alive;

	if (rx.head_length < HEAD_SIZE) {
		take(rx.head, &rx.head_length, HEAD_SIZE);
		if (rx.head_length < HEAD_SIZE)
			return true;
		frame_unpack(&rx.frame, rx.head);
		wrong = frame_check_head(&rx.frame, SIDE_HOST);
		if (wrong)
			return violated(wrong);
		rx.payload = malloc(rx.frame.length ? rx.frame.length : 1);
		if (!rx.payload)
			return violated("no memory for a frame");
	}
	take(rx.payload, &rx.payload_length, rx.frame.length);
	if (rx.payload_length < rx.frame.length)
		return true;
	payload = rx.payload;
	rx.payload = NULL;
	frame_reset();
	alive = dispatch(&rx.frame, payload);
	free(payload);
	return alive;
}

/* True while there is more to receive. */
static bool receive(void)
{
	ssize_t n;

	if (line.state == PARTING)
		return false;
	if (rx.start < rx.end)
		return parse();
	n = line.transport->read(rx.buffer, sizeof(rx.buffer));
	if (n < 0) {
		close_link();
		return false;
	}
	if (n == 0) {
		line.can_read = false;
		return false;
	}
	rx.start = 0;
	rx.end = (size_t)n;
	return true;
}

bool link_turn(void)
{
	bool reading = true, writing = true;

	for (int i = 0; i < STEPS_A_TURN && line.state != DOWN && (reading || writing); i++) {
		reading = line.can_read && receive();
		writing = line.can_write && transmit();
	}
	return line.state != DOWN && (reading || writing);
}
