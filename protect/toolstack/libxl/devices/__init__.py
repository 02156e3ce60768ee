"""Devices of domains: disks, and PCI functions of the host."""
