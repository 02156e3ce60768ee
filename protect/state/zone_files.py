"""A zone's copies of small files: users, versions, pending renewals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from protect.model.copied_files import FileId, FileVolume, FileWatch

Key = tuple[str, str]
"""Owner (a workload, "" for the zone) and the zone's name of the volume."""


def key_of(workload_id: str, volume: FileVolume) -> Key:
    return ("", volume.volume) if volume.volume else (workload_id, volume.name)


@dataclass(slots=True)
class FileCopy:
    """One copy; ``version``: "" until the version in the zone is known."""

    key: Key
    volume: FileVolume
    users: set[str] = field(default_factory=set)
    version: str = ""
    size_bytes: int = 0
    watch: FileWatch | None = None
    watched_file: FileId = (0, 0)

    @property
    def watched(self) -> bool:
        return self.watch is not None and self.watch.alive

    def watch_by(self, watch: FileWatch | None, file: FileId = (0, 0)) -> None:
        """Replace the watch."""
        self.watched_file = file
        if self.watch is not None:
            self.watch.close()
        self.watch = watch


@dataclass(slots=True)
class ZoneFiles:
    """All copies of one zone."""

    copies: dict[Key, FileCopy] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while files are put: one part at a time is on the way."""
    changed: set[Key] = field(default_factory=set)
    renewing: asyncio.Task[None] | None = None

    def hold(self, workload_id: str, volumes: Iterable[FileVolume]) -> None:
        """Note that a workload uses copies; new ones have no version yet."""
        for volume in volumes:
            key = key_of(workload_id, volume)
            copy = self.copies.setdefault(key, FileCopy(key, replace(volume, name=key[1])))
            copy.users.add(workload_id)

    def release(self, workload_id: str) -> None:
        """After a workload's end, stop renewing copies without users.  The zone keeps its own copies."""
        for key, copy in list(self.copies.items()):
            copy.users.discard(workload_id)
            if not copy.users:
                copy.watch_by(None)
                self.changed.discard(key)
                if key[0]:
                    del self.copies[key]

    def size_bytes(self, without: Key) -> int:
        """Memory of the zone for all copies but one, in bytes."""
        return sum(copy.size_bytes for key, copy in self.copies.items() if key != without)
