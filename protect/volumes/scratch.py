"""Files for zones' scratch disks: sparse; the full size is the hard limit.

The host neither makes nor mounts a file system in them: only the zone's kernel interprets their content.
Promised but unwritten bytes count as taken: a zone gets its promised space unless other writers fill the
host's disk (docs/operations/disks-and-devices.md).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Broken, Exhausted, Fault
from daemonkit.quantity import in_mib
from protect.model.ports import ScratchCapacity
from protect.model.toolstack import DiskSpec
from protect.model.zone import SCRATCH_VDEV

_BLOCK_BYTES = 512
"""Unit of st_blocks."""


class ScratchFiles:
    """``ScratchDisks`` in one directory."""

    def __init__(self, directory: Path, reserve: int, *, overcommit: bool = False) -> None:
        """``reserve``: bytes to leave free; ``overcommit``: promise more than the free space."""
        self._directory = directory
        self._reserve = reserve
        self._overcommit = overcommit
        self._promised: dict[str, int] = {}

    def admit(self, zone_id: str, size_bytes: int) -> None:
        if not size_bytes:
            return
        capacity = self.capacity()
        if size_bytes > capacity.free_bytes and not self._overcommit:
            raise Exhausted(
                "reserve scratch disk",
                f"zone {zone_id}",
                f"it needs {in_mib(size_bytes)}, free are {in_mib(capacity.free_bytes)} of {self._directory}"
                f" ({len(self._promised)} zones were promised {in_mib(capacity.promised_bytes)}, and have"
                f" written {in_mib(capacity.written_bytes)}; scratch.reserve keeps {in_mib(self._reserve)})",
                "destroy zones, give them smaller disks, or set scratch.overcommit",
            )
        self._promised[zone_id] = size_bytes

    def adopt(self, zone_id: str, size_bytes: int) -> None:
        if size_bytes:
            self._promised[zone_id] = size_bytes

    def make(self, zone_id: str) -> DiskSpec | None:
        if zone_id not in self._promised:
            return None
        path = self._path(zone_id)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            checkpoint("scratch.file-made")
            try:
                os.ftruncate(file, self._promised[zone_id])
            finally:
                os.close(file)
        except OSError as error:
            raise self._failed("make scratch disk", zone_id, error) from error
        return DiskSpec(SCRATCH_VDEV, path, readonly=False)

    def remove(self, zone_id: str) -> None:
        try:
            self._path(zone_id).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed("remove scratch disk", zone_id, error) from error
        self._promised.pop(zone_id, None)

    def zones(self) -> list[str]:
        if not self._directory.is_dir():
            return []
        return [path.stem for path in self._directory.iterdir() if path.suffix == ".img"]

    def capacity(self) -> ScratchCapacity:
        written = {zone: min(size, self._written(zone)) for zone, size in self._promised.items()}
        promised, used = sum(self._promised.values()), sum(written.values())
        free = self._free() - self._reserve - (promised - used)
        return ScratchCapacity(promised, used, max(0, free))

    def _path(self, zone_id: str) -> Path:
        return self._directory / f"{zone_id}.img"

    def _written(self, zone_id: str) -> int:
        try:
            return self._path(zone_id).stat().st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            return 0

    def _free(self) -> int:
        """Free bytes of the file system of the directory; the directory may not exist yet."""
        place = self._directory
        while not place.exists():
            place = place.parent
        found = os.statvfs(place)
        return found.f_bavail * found.f_frsize

    def _failed(self, operation: str, zone_id: str, error: OSError) -> Fault:
        kind = Exhausted if error.errno in (errno.ENOSPC, errno.EDQUOT) else Broken
        return kind(operation, f"zone {zone_id}", f"{self._directory}: {error.strerror or error}")
