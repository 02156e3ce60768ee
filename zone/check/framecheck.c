/* Checks frames, for tests.  Reads lines "host|agent <hex of a frame>"; answers each with a line "ok <type> <flags>
 * <stream> <length>", "error <why>", or "short" for an incomplete frame. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channel/wire.h"

enum { LINE_MAX = 2 * (HEAD_SIZE + CONTROL_MAX) + 16 };

static int digit(char c)
{
	const char *digits = "0123456789abcdef";
	const char *at = c ? strchr(digits, c) : NULL;

	return at ? (int)(at - digits) : -1;
}

static size_t from_hex(const char *hex, uint8_t *bytes)
{
	size_t length = 0;

	for (; digit(hex[0]) >= 0 && digit(hex[1]) >= 0; hex += 2)
		bytes[length++] = (uint8_t)(digit(hex[0]) << 4 | digit(hex[1]));
	return length;
}

static void check(enum side sender, const uint8_t *bytes, size_t length)
{
	uint8_t again[HEAD_SIZE];
	struct frame_head head;
	const char *wrong;

	if (length < HEAD_SIZE) {
		puts("short");
		return;
	}
	frame_unpack(&head, bytes);
	wrong = frame_check_head(&head, sender);
	if (!wrong && length < HEAD_SIZE + head.length) {
		puts("short");
		return;
	}
	if (!wrong)
		wrong = frame_check_payload(&head, bytes + HEAD_SIZE);
	if (wrong) {
		printf("error %s\n", wrong);
		return;
	}
	frame_pack(again, &head);
	if (memcmp(again, bytes, HEAD_SIZE) != 0)
		printf("error packs differently\n");
	else
		printf("ok %u %u %u %u\n", head.type, head.flags, head.stream, head.length);
}

int main(void)
{
	char *line = malloc(LINE_MAX);
	uint8_t *bytes = malloc(LINE_MAX / 2);

	if (!line || !bytes)
		return 1;
	while (fgets(line, LINE_MAX, stdin)) {
		char *blank = strchr(line, ' ');

		if (!blank)
			return 2;
		*blank = '\0';
		check(strcmp(line, "host") == 0 ? SIDE_HOST : SIDE_AGENT, bytes, from_hex(blank + 1, bytes));
		fflush(stdout);
	}
	free(line);
	free(bytes);
	return 0;
}
