"""The names of a zone's disks: which are taken, and which are free."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

from protect.state.runtime import ZoneRuntime


def taken(zone: ZoneRuntime) -> set[str]:
    """The names of the disks that a zone has, or is about to have."""
    disks = {disk.vdev for one in zone.workloads.values() for disk in one.workload.disks}
    return disks | {device.vdev for device in zone.zone.devices if device.vdev}


def free(names: set[str]) -> Iterator[str]:
    """Names that are not among these: xvda .. xvdz, xvdaa .. xvdyz, as many as ``disks_per_zone`` may be."""
    every = (f"xvd{first}{second}" for first in ("", *ascii_lowercase[:-1]) for second in ascii_lowercase)
    return (name for name in every if name not in names)
