#ifndef REASON_H
#define REASON_H

enum { REASON_SIZE = 512 };

/* The reason of a failure: "operation: object: <text of errno>". */
struct reason {
	char text[REASON_SIZE];
};
/* Fills in the reason and returns -1. */
int reason_errno(struct reason *reason, const char *operation, const char *object);

#endif
