"""The size of fake domains that run, and their share of CPUs."""
