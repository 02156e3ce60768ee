"""Xen's state of domains in xenstore."""
