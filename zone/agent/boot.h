/* What a guest's first process does before anything else. */
#ifndef BOOT_H
#define BOOT_H

/* Each gives -1 with a line on the console. */
int boot_console(void);
int boot_root(void);
int boot_mounts(void);
int boot_modules(void);
int boot_directories(void);

#endif
