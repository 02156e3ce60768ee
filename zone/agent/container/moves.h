/* Moving processes between control groups. */
#ifndef CONTAINER_MOVES_H
#define CONTAINER_MOVES_H

/* Says that a process will be moved to a group soon, so that the move need not wait.  A hint: it cannot fail. */
void moves_expect(void);

#endif
