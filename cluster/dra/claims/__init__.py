"""Claims that the scheduler has allocated to this node, and their reservations."""
