/* Kernel modules. */
#ifndef BOOT_MODULE_H
#define BOOT_MODULE_H

#include <stddef.h>

/* Loads one file, with its parameters ("name.parameter=value") of the kernel's command line.  A module that is loaded
 * already is fine; the kernel unpacks compressed ones.  -1 with errno. */
int module_load(const char *path);
/* Loads the named modules of `directory` (laid out as /lib/modules/<release>, with its modules.dep), each after those
 * it needs.  A name that is not there counts as built in; one that does not load is logged.  -1 with a log line when
 * there is no modules.dep. */
int modules_load(const char *directory, const char *const *names, size_t count);

#endif
