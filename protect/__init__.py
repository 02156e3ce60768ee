"""The Protect daemon: zones (one virtual machine each) and the workloads in them."""
