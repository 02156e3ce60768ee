"""The size of running fake domains, and their share of CPUs."""
