#include "channel/wire.h"

#include <stdbool.h>

static void u32_pack(uint8_t *out, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t u32_unpack(const uint8_t *in)
{
	return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

void u64_pack(uint8_t out[8], uint64_t value)
{
	u32_pack(out, (uint32_t)value);
	u32_pack(out + 4, (uint32_t)(value >> 32));
}

uint64_t u64_unpack(const uint8_t in[8])
{
	return u32_unpack(in) | (uint64_t)u32_unpack(in + 4) << 32;
}

void frame_pack(uint8_t out[HEAD_SIZE], const struct frame_head *head)
{
	out[0] = head->type;
	out[1] = head->flags;
	out[2] = 0;
	out[3] = 0;
	u32_pack(out + 4, head->stream);
	u32_pack(out + 8, head->length);
}

void frame_unpack(struct frame_head *head, const uint8_t in[HEAD_SIZE])
{
	head->type = in[0];
	head->flags = in[1];
	head->zero = (uint16_t)(in[2] | in[3] << 8);
	head->stream = u32_unpack(in + 4);
	head->length = u32_unpack(in + 8);
}

/* One row per frame type, as in the table of docs/channel.md. */
static const struct rule {
	bool from_host;
	bool from_agent;
	bool on_stream;
	bool may_fin;
	uint32_t shortest;
	uint32_t longest;
} rules[] = {
	[FRAME_HELLO] = { true, true, false, false, 0, HELLO_MAX },
	[FRAME_CALL] = { true, false, true, false, 0, CONTROL_MAX },
	[FRAME_REPLY] = { false, true, true, false, 0, CONTROL_MAX },
	[FRAME_EVENT] = { false, true, false, false, 0, EVENT_MAX },
	[FRAME_DATA] = { true, true, true, true, OFFSET_SIZE, OFFSET_SIZE + WINDOW },
	[FRAME_CREDIT] = { true, true, true, true, CREDIT_SIZE, CREDIT_SIZE },
};

const char *frame_check_head(const struct frame_head *head, enum side sender)
{
	const struct rule *rule;

	if (head->type == 0 || head->type >= sizeof(rules) / sizeof(rules[0]))
		return "unknown frame type";
	rule = &rules[head->type];
	if (sender == SIDE_HOST ? !rule->from_host : !rule->from_agent)
		return "wrong direction";
	if (head->flags & ~(rule->may_fin ? FLAG_FIN : 0))
		return "flag not allowed here";
	if (head->zero)
		return "reserved bytes not zero";
	if ((head->stream != 0) != rule->on_stream)
		return rule->on_stream ? "stream must not be 0" : "stream must be 0";
	if (head->length < rule->shortest || head->length > rule->longest)
		return "length out of bounds";
	if (head->type == FRAME_DATA && head->length == OFFSET_SIZE && !(head->flags & FLAG_FIN))
		return "DATA with neither bytes nor FIN";
	return NULL;
}

const char *frame_check_payload(const struct frame_head *head, const uint8_t *payload)
{
	uint64_t first, second;

	if (head->type == FRAME_CREDIT && !(head->flags & FLAG_FIN)) {
		first = u64_unpack(payload);
		second = u64_unpack(payload + 8);
		if (second < first)
			return "CREDIT with its limit below consumed";
		if (second - first > WINDOW)
			return "CREDIT with its limit above the window";
	}
	if (head->type == FRAME_DATA) {
		first = u64_unpack(payload);
		if (head->length - OFFSET_SIZE > UINT64_MAX - first)
			return "DATA runs past the last offset";
	}
	return NULL;
}
