"""What of the host a workload is to see: files and directories, block devices, PCI functions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
"""domain:bus:device.function"""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume, checked: ``name`` is a plain file name, ``host_path`` is absolute and has no ``..``."""

    name: str
    host_path: str
    readonly: bool = False
    """Read-only, together with all that is mounted below it."""
    follow_host: bool = False
    """Later mounts and unmounts below it on the host show in the zone."""
    create_directory: bool = False
    """Make a directory if there is nothing at the path."""
    map_ids: bool = False
    """Map its ids by the zone's user namespace."""


@dataclass(slots=True)
class VolumeSource:
    """A volume's mounts, with their attributes set, but not attached yet; ``close`` discards them."""

    volume: Volume
    tree: int
    """A descriptor."""
    directory: bool
    stage: int = -1
    """A descriptor of the same mounts, which follow the host, for a read-only volume that is to; -1: none."""

    def close(self) -> None:
        for descriptor in (self.tree, self.stage):
            if descriptor >= 0:
                os.close(descriptor)
        self.tree = self.stage = -1


def close_all(sources: Iterable[VolumeSource]) -> None:
    """Close each source; may be repeated."""
    for source in sources:
        source.close()


class DeviceKind(Enum):
    """What a zone is given: a disk, or a PCI function."""

    BLOCK = "block"
    PCI = "pci"


@dataclass(frozen=True, slots=True)
class ZoneDevice:
    """A device that a zone has, or is to have, or is to lose: recorded with the zone.

    ``name`` is that of the configuration, "" for one that was asked for by its path.  ``place`` is its path
    on the host, or its PCI address.  ``number``, st_rdev, and ``vdev``, its name in the zone, are of a block
    device alone.  ``ready``: it is attached, and nothing is under way.  ``kept``: until the zone ends or
    somebody detaches it; else until none of ``users``, which are workloads, is left.
    """

    kind: DeviceKind
    place: str
    name: str = ""
    number: int = 0
    vdev: str = ""
    readonly: bool = False
    ready: bool = False
    kept: bool = False
    users: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Of a block device, on the host."""
        return Path(self.place)

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name or self.place

    def same(self, other: ZoneDevice) -> bool:
        """Whether both are one device of the host, by whatever names."""
        return (self.kind, self.number or self.place) == (other.kind, other.number or other.place)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A device that a workload asks for, by the configuration's name or by a path of the host.

    In the container it is a node at ``container_path`` that belongs to ``uid`` and ``gid``; a PCI function
    has none.
    """

    name: str = ""
    host_path: str = ""
    container_path: str = ""
    readonly: bool = False
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class HostBlockDevice:
    """What was found at a path; ``path`` leads to it without symbolic links."""

    path: Path
    number: int


@dataclass(frozen=True, slots=True)
class GuestDevice:
    """A disk as its zone sees it; untrusted."""

    major: int
    minor: int
    size_bytes: int
    in_use: bool


class HostDevices(Protocol):
    """Finds devices of this host by their paths."""

    async def find(self, zone_id: str, paths: Sequence[str], timeout: float) -> list[HostBlockDevice]:
        """Missing, Invalid: one is no block device; TooLate: the host does not answer in time."""
        ...
