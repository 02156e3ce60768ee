"""The size of running domains, and their share of CPUs, on Xen."""
