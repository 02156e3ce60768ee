/* The zone's first random bytes: a seed from the host. */
#ifndef BOOT_SEED_H
#define BOOT_SEED_H

/* `source` is "xenstore", or "" for none.  Without a seed the kernel gathers entropy itself, which may take seconds:
 * the lack is logged, and the boot goes on. */
void seed_take(const char *source);

#endif
