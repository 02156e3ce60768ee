"""Devices of the host in zones: found, attached to one zone at a time, shown in containers, detached."""
