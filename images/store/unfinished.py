"""Keeps layers of unfinished pulls for the next attempt, within bounds of age and size.

A whole layer here is verified, but belongs to no image. A partial layer is verified once complete. The age
counts from the file's modification time, and continues over a restart of the daemon.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from images.image_settings import ImageSettings
from images.store.image_files import StoreFiles

# Above this disk usage the kubelet removes images (imageGCHighThresholdPercent). The kubelet cannot remove
# unfinished layers, because they are no images.
_FULL_PERCENT = 85


@dataclass(frozen=True, slots=True)
class _KeptLayer:
    path: Path
    bytes: int
    since: float


class UnfinishedLayers:
    """The layers of unfinished pulls.  Safe to use from any thread: the store's lock is held."""

    def __init__(
        self,
        files: StoreFiles,
        settings: ImageSettings,
        lock: AbstractContextManager[object],
        in_use: Callable[[], Set[Path]],
    ) -> None:
        """in_use: returns the files that images or leases use."""
        self._files = files
        self._settings = settings
        self._lock = lock
        self._in_use = in_use

    def bytes(self) -> int:
        """The total size of unfinished layers, in bytes."""
        with self._lock:
            return sum(kept.bytes for kept in self._kept())

    def keep(self, paths: Iterable[Path]) -> None:
        """Restart the age of the given layers that exist unused."""
        with self._lock:
            in_use = self._in_use()
            for path in paths:
                if path not in in_use and path.is_file():
                    os.utime(path)

    def trim(self) -> float | None:
        """Remove layers beyond the bounds; returns the seconds until the next expires, or None."""
        with self._lock:
            now, left = time.time(), 0
            oldest = None
            for kept in sorted(self._kept(), key=lambda one: one.since, reverse=True):
                # abs(): after a clock was set back, layers must still expire.
                age = abs(now - kept.since)
                if (
                    age >= self._settings.unfinished_seconds
                    or left + kept.bytes > self._settings.unfinished_bytes
                ):
                    kept.path.unlink(missing_ok=True)
                else:
                    left += kept.bytes
                    oldest = max(oldest or 0.0, age)
            return None if oldest is None else self._settings.unfinished_seconds - oldest

    def give_back(self) -> int:
        """Remove all unfinished layers; returns their size in bytes."""
        with self._lock:
            given = 0
            for kept in self._kept():
                kept.path.unlink(missing_ok=True)
                given += kept.bytes
            return given

    def drop_parts(self, digests: Iterable[str], origin: str) -> None:
        """Remove the partial layers from this origin."""
        with self._lock:
            for digest in digests:
                self._files.partial_path(digest, origin).unlink(missing_ok=True)

    def make_room(self, size: int) -> None:
        """Remove everything if the disk has less than ``size`` bytes left."""
        disk = os.statvfs(self._files.root)
        if disk.f_bavail * disk.f_frsize < size:
            self.give_back()

    def relieve(self) -> None:
        """Remove everything if the disk is full enough for the kubelet to remove images."""
        disk = os.statvfs(self._files.root)
        self.make_room(disk.f_blocks * disk.f_frsize * (100 - _FULL_PERCENT) // 100)

    def _kept(self) -> list[_KeptLayer]:
        found = []
        for path in {*self._files.layers(), *self._files.partial()} - self._in_use():
            # A download may be taking its partial layer at this moment.
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append(_KeptLayer(path, status.st_blocks * 512, status.st_mtime))
        return found
