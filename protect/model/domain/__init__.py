"""A domain in terms of the toolstack: boot, size, share of CPUs."""
