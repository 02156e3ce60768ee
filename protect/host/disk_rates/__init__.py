"""Rates of zones' disks.  The host's kernel enforces them for the tasks of a control group."""
