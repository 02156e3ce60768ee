/* Kernel modules. */
#ifndef BOOT_MODULE_H
#define BOOT_MODULE_H

#include <stddef.h>

/* Loads one file, with its parameters ("name.parameter=value") from the kernel's command line.  An already loaded
 * module is no error; the kernel unpacks compressed modules.  -1 with errno. */
int module_load(const char *path);
/* Loads the named modules of `directory` (laid out like /lib/modules/<release>, with its modules.dep), each after its
 * dependencies.  A missing name counts as built in; a failed load is logged.  -1 with a log line if modules.dep is
 * missing. */
int modules_load(const char *directory, const char *const *names, size_t count);

#endif
