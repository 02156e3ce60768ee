#include "channel/inbox.h"

#include <stdlib.h>
#include <string.h>

static uint8_t buffer[SLICE_MAX];
static size_t start;
static size_t end;

/* The incomplete frame. */
static uint8_t head[HEAD_SIZE];
static size_t head_length;
static struct frame_head current;
static uint8_t *body;
static size_t body_length;

uint8_t *inbox_buffer(size_t *size)
{
	*size = sizeof(buffer);
	return buffer;
}

void inbox_filled(size_t length)
{
	start = 0;
	end = length;
}

bool inbox_empty(void)
{
	return start == end;
}

static bool take(uint8_t *to, size_t *have, size_t want)
{
	size_t n = end - start < want - *have ? end - start : want - *have;

	if (n)
		memcpy(to + *have, buffer + start, n);
	start += n;
	*have += n;
	return *have == want;
}

/* Checks the complete header: it must be legal before any byte after it is kept. */
static const char *begin_body(void)
{
	const char *wrong;

	frame_unpack(&current, head);
	wrong = frame_check_head(&current, SIDE_HOST);
	if (wrong)
		return wrong;
	body = malloc(current.length ? current.length : 1);
	return body ? NULL : "no memory for a frame";
}

int inbox_take(struct frame_head *frame, uint8_t **payload, const char **wrong)
{
	if (!body) {
		if (!take(head, &head_length, HEAD_SIZE))
			return 0;
		*wrong = begin_body();
		if (*wrong)
			return -1;
	}
	if (!take(body, &body_length, current.length))
		return 0;
	*wrong = frame_check_payload(&current, body);
	if (*wrong)
		return -1;
	*frame = current;
	*payload = body;
	body = NULL;
	head_length = body_length = 0;
	return 1;
}

void inbox_clear(void)
{
	free(body);
	body = NULL;
	head_length = body_length = 0;
	start = end = 0;
}
