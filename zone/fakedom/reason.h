#ifndef REASON_H
#define REASON_H

enum { REASON_SIZE = 512 };

/* Why something could not be done; what fails fills it in and gives -1. */
struct reason {
	char text[REASON_SIZE];
};
int because(struct reason *reason, const char *operation, const char *object);

#endif
