/* Moving processes between control groups. */
#ifndef CONTAINER_MOVES_H
#define CONTAINER_MOVES_H

/* Announces a move of a process to a group: the move then need not wait.  A hint: it cannot fail. */
void moves_expect(void);

#endif
