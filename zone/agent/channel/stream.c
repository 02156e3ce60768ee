#include "channel/stream.h"

#include <errno.h>

enum { BUCKETS = 256 };

static struct stream *buckets[BUCKETS];
static uint32_t next_number = 1; /* 0: all are used up */
static bool connected;
static struct stream *queue_first;
static struct stream **queue_last = &queue_first;

static struct stream **bucket_of(uint32_t number)
{
	return &buckets[number % BUCKETS];
}

int stream_register(struct stream *stream, const struct stream_kind *kind, bool fresh)
{
	struct stream **bucket;

	if (!next_number) {
		errno = EOVERFLOW;
		return -1;
	}
	*stream = (struct stream){ .kind = kind, .number = next_number++, .credited = fresh };
	bucket = bucket_of(stream->number);
	stream->next_in_bucket = *bucket;
	*bucket = stream;
	return 0;
}

static void unqueue(struct stream *stream)
{
	struct stream **place = &queue_first;

	if (!stream->queued)
		return;
	while (*place != stream)
		place = &(*place)->next_in_queue;
	*place = stream->next_in_queue;
	if (!*place)
		queue_last = place;
	stream->queued = false;
}

void stream_unregister(struct stream *stream)
{
	struct stream **place = bucket_of(stream->number);

	unqueue(stream);
	while (*place != stream)
		place = &(*place)->next_in_bucket;
	*place = stream->next_in_bucket;
}

void stream_queue(struct stream *stream)
{
	if (stream->queued)
		return;
	stream->queued = true;
	stream->next_in_queue = NULL;
	*queue_last = stream;
	queue_last = &stream->next_in_queue;
}

size_t streams_next(uint8_t *frame)
{
	size_t length = 0;

	while (!length && queue_first) {
		struct stream *stream = queue_first;

		queue_first = stream->next_in_queue;
		if (!queue_first)
			queue_last = &queue_first;
		stream->queued = false;
		length = stream->kind->frame(stream, frame);
	}
	return length;
}

static struct stream *find(uint32_t number)
{
	struct stream *stream = *bucket_of(number);

	while (stream && stream->number != number)
		stream = stream->next_in_bucket;
	return stream && !stream->forgotten ? stream : NULL;
}

static bool never_used(uint32_t number)
{
	return next_number && number >= next_number;
}

const char *stream_data(uint32_t number, uint64_t offset, const uint8_t *bytes, size_t length, bool fin)
{
	struct stream *stream = find(number);

	if (!stream)
		return never_used(number) ? "DATA for a stream never used" : NULL;
	if (!stream->kind->data)
		return "DATA for an output stream";
	return stream->kind->data(stream, offset, bytes, length, fin);
}

const char *stream_credit(uint32_t number, uint64_t consumed, uint64_t limit, bool fin)
{
	struct stream *stream = find(number);

	if (!stream)
		return never_used(number) ? "CREDIT for a stream never used" : NULL;
	if (!stream->kind->credit)
		return "CREDIT for an input stream";
	return stream->kind->credit(stream, consumed, limit, fin);
}

static void tell_all(bool up)
{
	connected = up;
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct stream *stream = buckets[i]; stream; stream = stream->next_in_bucket)
			stream->kind->connected(stream, up);
}

void streams_connected(void)
{
	tell_all(true);
}

void streams_disconnected(void)
{
	while (queue_first) {
		queue_first->queued = false;
		queue_first = queue_first->next_in_queue;
	}
	queue_last = &queue_first;
	tell_all(false);
}

bool streams_are_connected(void)
{
	return connected;
}
