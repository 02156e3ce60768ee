"""Claims allocated to this node by the scheduler, and their reservations."""
