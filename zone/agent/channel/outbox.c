#include "channel/outbox.h"

#include <stdlib.h>

#include "channel/stream.h"

struct message {
	struct message *next;
	size_t length;
	uint32_t call; /* the answered call, or 0 */
	uint8_t bytes[];
};

/* The slice is being sent, or else the first message. */
static struct message *first;
static struct message **last = &first;
static uint8_t slice[HEAD_SIZE + OFFSET_SIZE + SLICE_MAX];
static size_t slice_length;
static size_t sent;

int outbox_add(enum frame_type type, uint32_t stream, const ProtobufCMessage *message)
{
	struct frame_head head = { .type = (uint8_t)type, .stream = stream };
	size_t length = protobuf_c_message_get_packed_size(message);
	struct message *one = malloc(sizeof(*one) + HEAD_SIZE + length);

	if (!one)
		return -1;
	head.length = (uint32_t)length;
	one->next = NULL;
	one->length = HEAD_SIZE + length;
	one->call = type == FRAME_REPLY ? stream : 0;
	frame_pack(one->bytes, &head);
	protobuf_c_message_pack(message, one->bytes + HEAD_SIZE);
	*last = one;
	last = &one->next;
	return 0;
}

size_t outbox_next(const uint8_t **bytes, bool streams)
{
	if (!slice_length && !first && streams)
		slice_length = streams_next(slice);
	if (slice_length) {
		*bytes = slice + sent;
		return slice_length - sent;
	}
	if (!first)
		return 0;
	*bytes = first->bytes + sent;
	return first->length - sent;
}

uint32_t outbox_sent(size_t length)
{
	struct message *one = first;
	uint32_t call;

	sent += length;
	if (slice_length) {
		if (sent == slice_length)
			slice_length = sent = 0;
		return 0;
	}
	if (sent < one->length)
		return 0;
	sent = 0;
	call = one->call;
	first = one->next;
	if (!first)
		last = &first;
	free(one);
	return call;
}

bool outbox_empty(void)
{
	return !first && !slice_length;
}

void outbox_clear(void)
{
	while (first) {
		struct message *one = first;

		first = one->next;
		free(one);
	}
	last = &first;
	slice_length = sent = 0;
}
