#include "wire.h"

#include <string.h>

const uint8_t *get_bytes(struct reader *in, size_t length)
{
	const uint8_t *bytes = in->at;

	if (in->broken || length > in->left) {
		in->broken = true;
		return NULL;
	}
	in->at += length;
	in->left -= length;
	return bytes;
}

static uint64_t get(struct reader *in, size_t size)
{
	const uint8_t *bytes = get_bytes(in, size);
	uint64_t value = 0;

	while (bytes && size--)
		value = value << 8 | bytes[size];
	return value;
}

uint8_t get8(struct reader *in)
{
	return (uint8_t)get(in, 1);
}

uint16_t get16(struct reader *in)
{
	return (uint16_t)get(in, 2);
}

uint32_t get32(struct reader *in)
{
	return (uint32_t)get(in, 4);
}

uint64_t get64(struct reader *in)
{
	return get(in, 8);
}

void get_text(struct reader *in, char *text, size_t size)
{
	size_t length = get16(in);
	const uint8_t *bytes = get_bytes(in, length);

	*text = '\0';
	if (!bytes || length >= size || memchr(bytes, 0, length)) {
		in->broken = true;
		return;
	}
	memcpy(text, bytes, length);
	text[length] = '\0';
}

static void put(struct writer *out, uint64_t value, size_t size)
{
	for (size_t i = 0; i < size; i++)
		out->start[out->length++] = (uint8_t)(value >> (8 * i));
}

void put8(struct writer *out, uint8_t value)
{
	put(out, value, 1);
}

void put16(struct writer *out, uint16_t value)
{
	put(out, value, 2);
}

void put32(struct writer *out, uint32_t value)
{
	put(out, value, 4);
}

void put64(struct writer *out, uint64_t value)
{
	put(out, value, 8);
}

void put_text(struct writer *out, const char *text, size_t length)
{
	put16(out, (uint16_t)length);
	memcpy(out->start + out->length, text, length);
	out->length += length;
}

void put_qid(struct writer *out, mode_t type, uint64_t path)
{
	put8(out, S_ISDIR(type) ? 0x80 : S_ISLNK(type) ? 0x02 : 0);
	put32(out, 0); /* the version: clients cache nothing by it */
	put64(out, path);
}

void patch32(uint8_t *place, uint32_t value)
{
	struct writer out = { place, 0 };

	put32(&out, value);
}
