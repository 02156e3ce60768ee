"""A zone's scratch disk: where its workloads write instead of to its memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protect.model.toolstack import DiskSpec

SCRATCH_VDEV = "xvdzy"
"""The name of a zone's scratch disk."""


@dataclass(frozen=True, slots=True)
class ScratchRoom:
    """Bytes promised to zones, written of that, and left for another disk."""

    promised_bytes: int
    written_bytes: int
    free_bytes: int


class ScratchDisks(Protocol):
    """The host's side of zones' scratch disks."""

    def admit(self, zone_id: str, size_bytes: int) -> None:
        """Promise a new zone its disk; nothing for one of 0 bytes.  Exhausted, with the numbers."""
        ...

    def adopt(self, zone_id: str, size_bytes: int) -> None:
        """Take over the promise to a zone that exists."""
        ...

    def make(self, zone_id: str) -> DiskSpec | None:
        """Make the disk, which reads as zeros; None: the zone was promised none.

        Exhausted, Broken: of the host's disk; ``remove`` then cleans up.
        """
        ...

    def remove(self, zone_id: str) -> None:
        """Remove the disk, once no domain has it, and the promise; fine where there is none."""
        ...

    def zones(self) -> list[str]:
        """The zones that have one."""
        ...

    def room(self) -> ScratchRoom: ...


def scratch_path(directory: Path, zone_id: str) -> Path:
    """The file of a zone."""
    return directory / f"{zone_id}.img"
