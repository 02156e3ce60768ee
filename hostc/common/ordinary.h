#ifndef ORDINARY_H
#define ORDINARY_H

/* Gives up what the caller's daemon has of protection from the OOM killer: this process and those that it starts are
 * no daemons.  Failing changes nothing. */
void ordinary_process(void);

#endif
