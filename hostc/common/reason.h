#ifndef REASON_H
#define REASON_H

enum { REASON_SIZE = 512 };

/* Why something could not be done: "operation: object: <text of errno>". */
struct reason {
	char text[REASON_SIZE];
};
/* Fills it in and returns -1. */
int reason_errno(struct reason *reason, const char *operation, const char *object);

#endif
