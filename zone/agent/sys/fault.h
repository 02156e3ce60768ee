/* The reason of a failed operation: a google.rpc code and "operation: object: cause". */
#ifndef SYS_FAULT_H
#define SYS_FAULT_H

enum code {
	OK = 0,
	INVALID_ARGUMENT = 3,
	DEADLINE_EXCEEDED = 4,
	NOT_FOUND = 5,
	ALREADY_EXISTS = 6,
	RESOURCE_EXHAUSTED = 8,
	FAILED_PRECONDITION = 9,
	ABORTED = 10,
	UNIMPLEMENTED = 12,
	INTERNAL = 13,
};

struct fault {
	enum code code;
	char text[1536];
};

/* Fills in the fault and returns -1: a caller can `return fault_set(...)`. */
int fault_set(struct fault *fault, enum code code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The same with errno as the cause. */
int fault_errno(struct fault *fault, const char *operation, const char *object);

#endif
