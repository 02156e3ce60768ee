"""The size of domains that run, and their share of CPUs, on Xen."""
