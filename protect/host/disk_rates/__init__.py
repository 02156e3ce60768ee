"""Rates of zones' disks, which the kernel of the host holds for the tasks of a control group."""
