"""The Protect daemon: zones (one virtual machine each) and their workloads."""
