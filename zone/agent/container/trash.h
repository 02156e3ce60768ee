/* Removes the trash of the scratch disk, in a separate process: the removal may take long. */
#ifndef CONTAINER_TRASH_H
#define CONTAINER_TRASH_H

/* Starts the removal; the trash may have new files. */
void trash_empty(void);

#endif
