/* Kernel modules. */
#ifndef MODULE_H
#define MODULE_H

#include <stddef.h>

/* One that is there already is fine; compressed ones are the kernel's to unpack.  -1 with errno. */
int module_load(const char *path);
/* Those of the names that `directory` has (as /lib/modules/<release>, with its modules.dep), after those they need.
 * What it does not have is taken for built in; what does not load is said.  -1, with a line on the console, when
 * there is no modules.dep. */
int modules_load(const char *directory, const char *const *names, size_t count);

#endif
