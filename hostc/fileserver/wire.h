/* Messages of 9P2000.L: little-endian integers, texts after a length of 16 bits.
 *
 * Sources: the 9P2000.L description of https://github.com/chaos/diod/blob/master/protocol.md, and Linux
 * include/net/9p/9p.h. */
#ifndef FILESERVER_WIRE_H
#define FILESERVER_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum {
	HEADER = 7, /* size[4] type[1] tag[2] */
	MSIZE_MIN = 8192,
	MSIZE_MAX = 256 << 10,
	NAME_LONGEST = 255,
	PATH_LONGEST = 4095,
	WALK_MAX = 16,
	QID_SIZE = 13,
};

/* Types of requests; a reply's type is one more. */
enum request {
	R_LERROR = 7,
	T_STATFS = 8,
	T_LOPEN = 12,
	T_LCREATE = 14,
	T_SYMLINK = 16,
	T_MKNOD = 18,
	T_READLINK = 22,
	T_GETATTR = 24,
	T_SETATTR = 26,
	T_XATTRWALK = 30,
	T_XATTRCREATE = 32,
	T_READDIR = 40,
	T_FSYNC = 50,
	T_LOCK = 52,
	T_GETLOCK = 54,
	T_LINK = 70,
	T_MKDIR = 72,
	T_RENAMEAT = 74,
	T_UNLINKAT = 76,
	T_VERSION = 100,
	T_ATTACH = 104,
	T_FLUSH = 108,
	T_WALK = 110,
	T_READ = 116,
	T_WRITE = 118,
	T_CLUNK = 120,
	T_REMOVE = 122,
};

/* The unread rest of a request.  A read beyond it gives 0 and sets `broken`. */
struct reader {
	const uint8_t *at;
	size_t left;
	bool broken;
};

/* A reply under construction, in a buffer of MSIZE_MAX bytes.  Callers respect the bound. */
struct writer {
	uint8_t *start;
	size_t length;
};

uint8_t get8(struct reader *in);
uint16_t get16(struct reader *in);
uint32_t get32(struct reader *in);
uint64_t get64(struct reader *in);
/* Copies a text with a final NUL; `size` includes the NUL.  A longer text, or a text with a NUL in it, is broken. */
void get_text(struct reader *in, char *text, size_t size);
/* The next `length` bytes without a copy; NULL if fewer are left. */
const uint8_t *get_bytes(struct reader *in, size_t length);

void put8(struct writer *out, uint8_t value);
void put16(struct writer *out, uint16_t value);
void put32(struct writer *out, uint32_t value);
void put64(struct writer *out, uint64_t value);
void put_text(struct writer *out, const char *text, size_t length);
void put_qid(struct writer *out, mode_t type, uint64_t path);

/* Overwrites an earlier number. */
void patch32(uint8_t *place, uint32_t value);

#endif
