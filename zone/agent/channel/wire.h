/* The frames of docs/channel.md: packs, unpacks and checks them; no I/O. */
#ifndef CHANNEL_WIRE_H
#define CHANNEL_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum {
	PROTOCOL_VERSION = 1,
	HEAD_SIZE = 12,
	OFFSET_SIZE = 8,
	CREDIT_SIZE = 16,
	HELLO_MAX = 4096,
	EVENT_MAX = 4096,
	CONTROL_MAX = 1 << 20,
	/* Most bytes of a stream that are under way, or kept for a repetition. */
	WINDOW = 65536,
	/* Most bytes in one DATA frame of the agent. */
	SLICE_MAX = 16384,
};

enum frame_type {
	FRAME_HELLO = 1,
	FRAME_CALL = 2,
	FRAME_REPLY = 3,
	FRAME_EVENT = 4,
	FRAME_DATA = 5,
	FRAME_CREDIT = 6,
};

enum { FLAG_FIN = 1 };

enum side { SIDE_HOST, SIDE_AGENT };

struct frame_head {
	uint8_t type;
	uint8_t flags;
	uint16_t zero;
	uint32_t stream;
	uint32_t length;
};

void frame_pack(uint8_t out[HEAD_SIZE], const struct frame_head *head);
void frame_unpack(struct frame_head *head, const uint8_t in[HEAD_SIZE]);

/* Both return the error in this sender's frame, or NULL. */
const char *frame_check_head(const struct frame_head *head, enum side sender);
const char *frame_check_payload(const struct frame_head *head, const uint8_t *payload);

void u64_pack(uint8_t out[8], uint64_t value);
uint64_t u64_unpack(const uint8_t in[8]);

#endif
