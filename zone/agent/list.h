/* ListProcesses waits for what earlier connections began, so that its answer is the whole truth. */
#ifndef LIST_H
#define LIST_H

/* An operation has ended. */
void lists_go_on(void);

#endif
