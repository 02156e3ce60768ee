"""Parts of the host for workloads: files and directories, block devices, PCI functions."""

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
    """Read-only, with all mounts below the path."""
    follow_host: bool = False
    """Later mounts and unmounts below the path on the host show in the zone."""
    create_directory: bool = False
    """Make a directory if nothing is at the path."""
    map_ids: bool = False
    """Map ids by the zone's user namespace."""


@dataclass(slots=True)
class VolumeSource:
    """A volume's detached mounts with their attributes; ``close`` discards the mounts."""

    volume: Volume
    tree: int
    """A descriptor."""
    directory: bool
    stage: int = -1
    """Descriptor of mounts that follow the host, for a read-only volume with ``follow_host``; else -1."""

    def close(self) -> None:
        for descriptor in (self.tree, self.stage):
            if descriptor >= 0:
                os.close(descriptor)
        self.tree = self.stage = -1


def close_all(sources: Iterable[VolumeSource]) -> None:
    """Close each source.  Idempotent."""
    for source in sources:
        source.close()


class DeviceKind(Enum):
    """Kind of a device in a zone: a disk, or a PCI function."""

    BLOCK = "block"
    PCI = "pci"


@dataclass(frozen=True, slots=True)
class ZoneDevice:
    """A device of a zone, also during attach and detach; recorded with the zone.

    ``name``: the name in the configuration, "" for a device requested by path.  ``place``: path on the host,
    or PCI address.  Block devices also have ``number`` (st_rdev) and ``vdev`` (name in the zone).  ``ready``:
    attached, with no step under way.  ``kept``: stays until the zone's end or an explicit detach; else until
    the last workload of ``users`` has ended.
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
        """Path of a block device on the host."""
        return Path(self.place)

    @property
    def label(self) -> str:
        """Name for people."""
        return self.name or self.place

    def same(self, other: ZoneDevice) -> bool:
        """Whether both are the same device of the host, under any names."""
        return (self.kind, self.number or self.place) == (other.kind, other.number or other.place)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A workload's request for a device, by the configuration's name or by a path of the host.

    The container gets a node at ``container_path``, owned by ``uid`` and ``gid``; PCI functions have no node.
    """

    name: str = ""
    host_path: str = ""
    container_path: str = ""
    readonly: bool = False
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class HostBlockDevice:
    """A block device found at a path; ``path`` has no symbolic links."""

    path: Path
    number: int


@dataclass(frozen=True, slots=True)
class GuestDevice:
    """A disk in the zone's view; untrusted."""

    major: int
    minor: int
    size_bytes: int
    in_use: bool


class HostDevices(Protocol):
    """Finds devices of this host by their paths."""

    async def find(self, zone_id: str, paths: Sequence[str], timeout: float) -> list[HostBlockDevice]:
        """Missing, Invalid: a path has no block device.  TooLate: the host does not answer in time."""
        ...
