"""The rates of one block device for one control group.

A rate limits the group's requests to the device.  A loop device waits before its requests reach the file
system below; the waiting holds no locks and no journal of that file system.

Sources: Documentation/admin-guide/cgroup-v2.rst (io.max), cgroup-v1/blkio-controller.rst.
"""

from __future__ import annotations

import os
from pathlib import Path

from protect.model.domain.shares import DiskRates

_SECOND = {
    "read_bytes": "rbps",
    "write_bytes": "wbps",
    "read_operations": "riops",
    "write_operations": "wiops",
}
_FIRST = {
    "read_bytes": "blkio.throttle.read_bps_device",
    "write_bytes": "blkio.throttle.write_bps_device",
    "read_operations": "blkio.throttle.read_iops_device",
    "write_operations": "blkio.throttle.write_iops_device",
}
_MOST_OPERATIONS = 2**32 - 1
"""Maximum in version 1; version 2 treats it as no limit."""


def can_throttle(group: Path) -> bool:
    """Whether the kernel can enforce rates for the group; the group may not be a root."""
    return (group / "io.max").exists() or (group / _FIRST["read_bytes"]).exists()


def throttle(group: Path, device: int, rates: DiskRates, sys: Path = Path("/sys")) -> None:
    """Set all rates of the device (as st_rdev) for the group.  OSError: the kernel refuses."""
    number = whole_disk(device, sys)
    limits = {name: _least(name, getattr(rates, name)) for name in _SECOND}
    if (group / "io.max").exists():
        words = (f"{_SECOND[name]}={value or 'max'}" for name, value in limits.items())
        (group / "io.max").write_text(f"{number} {' '.join(words)}")
        return
    for name, value in limits.items():
        (group / _FIRST[name]).write_text(f"{number} {value}")


def lift(group: Path) -> None:
    """Lift all rates of the group: its delayed requests go on at once.  OSError: the kernel refuses."""
    if (group / "io.max").exists():
        for line in (group / "io.max").read_text().splitlines():
            words = (f"{word}=max" for word in _SECOND.values())
            (group / "io.max").write_text(f"{line.split()[0]} {' '.join(words)}")
        return
    for name in _FIRST.values():
        if (group / name).exists():
            for line in (group / name).read_text().splitlines():
                (group / name).write_text(f"{line.split()[0]} 0")


def whole_disk(device: int, sys: Path = Path("/sys")) -> str:
    """``major:minor`` of the device, or of a partition's whole disk: partitions have no rates."""
    number = f"{os.major(device)}:{os.minor(device)}"
    place = sys / "dev/block" / number
    if (place / "partition").exists():
        return (place.resolve().parent / "dev").read_text().strip()
    return number


def _least(name: str, value: int) -> int:
    return min(value, _MOST_OPERATIONS) if name.endswith("operations") else value
