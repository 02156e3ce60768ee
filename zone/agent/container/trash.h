/* Removes what is in the trash of the scratch disk, in a process of its own: that may take long. */
#ifndef CONTAINER_TRASH_H
#define CONTAINER_TRASH_H

/* Something may be there now. */
void trash_empty(void);

#endif
