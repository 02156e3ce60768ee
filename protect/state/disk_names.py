"""Taken and free names of a zone's disks."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

from protect.state.runtime import ZoneRuntime


def taken(zone: ZoneRuntime) -> set[str]:
    """Names of a zone's disks, also of disks not attached yet."""
    disks = {disk.vdev for one in zone.workloads.values() for disk in one.workload.disks}
    return disks | {device.vdev for device in zone.zone.devices if device.vdev}


def free(names: set[str]) -> Iterator[str]:
    """Names not in ``names``: xvda .. xvdz, xvdaa .. xvdyz, enough for the largest ``disks_per_zone``."""
    every = (f"xvd{first}{second}" for first in ("", *ascii_lowercase[:-1]) for second in ascii_lowercase)
    return (name for name in every if name not in names)
