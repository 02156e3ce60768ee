/* Log lines on the zone's console.  Logging never blocks: if the console is full, text is lost. */
#ifndef SYS_LOG_H
#define SYS_LOG_H

void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Logs "operation: object: <text of errno>". */
void log_errno(const char *operation, const char *object);

#endif
