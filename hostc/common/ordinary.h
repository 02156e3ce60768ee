#ifndef ORDINARY_H
#define ORDINARY_H

/* Gives up the OOM protection inherited from the caller's daemon, for this process and its children: they are no
 * daemons.  A failure changes nothing. */
void ordinary_process(void);

#endif
