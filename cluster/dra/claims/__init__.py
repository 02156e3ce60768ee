"""Claims allocated to this node by the scheduler, and the reservations of claims."""
