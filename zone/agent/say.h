/* Lines on the zone's console.  Never blocks: what the console does not take is lost. */
#ifndef SAY_H
#define SAY_H

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Adds ": <errno's text>". */
void say_errno(const char *operation, const char *object);

#endif
