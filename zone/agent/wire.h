/* The frames of docs/channel.md: pure packing, unpacking and checking. */
#ifndef WIRE_H
#define WIRE_H

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
	/* Most bytes of a stream that are under way or kept for another try. */
	WINDOW = 65536,
	/* Most bytes that one DATA frame of ours carries. */
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

/* NULL when `sender` may send such a frame, else what is wrong with it. */
const char *frame_check_head(const struct frame_head *head, enum side sender);
const char *frame_check_payload(const struct frame_head *head, const uint8_t *payload);

void u64_pack(uint8_t out[8], uint64_t value);
uint64_t u64_unpack(const uint8_t in[8]);

#endif
