"""Small files of this host, found, watched and read for their copies in zones (ADR 33)."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import stat
from collections.abc import Callable, Sequence
from typing import TypeVar

from daemonkit.faults import Broken, Refused, TooLate
from daemonkit.host import mountinfo
from daemonkit.host.host_calls import HostCalls
from daemonkit.host.lookup import Lookup, Lookups, Place
from daemonkit.tasks import complete
from protect.model.copied_files import FileChunk, FileTree, FileVolume, FoundFiles, WantedFiles
from protect.volumes import filetree
from protect.volumes.returned import open_returned
from protect.volumes.watch import FileWatches

T = TypeVar("T")

OPERATION = "copy files of"


class HostFileVolumes:
    """``protect.model.ports.HostFiles``.

    ``lookups``: processes that look paths up, with a limit for each zone; a hung process can be abandoned.
    """

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        self._calls = HostCalls()
        self._watches = FileWatches()

    def close(self) -> None:
        self._watches.close()

    async def find(self, zone_id: str, wanted: Sequence[WantedFiles], timeout: float) -> list[FoundFiles]:
        found: list[FoundFiles] = []
        try:
            async with asyncio.timeout(timeout), self._lookups.begin(zone_id) as lookup:
                for each in wanted:
                    found.append(await self._find(zone_id, lookup, each))
        except BaseException as error:
            for each_found in found:
                _drop(each_found)
            if isinstance(error, TimeoutError):
                paths = ", ".join(each.volume.host_path for each in wanted)
                cause = f"the host did not find them within {timeout:g} s"
                raise TooLate(OPERATION, f"{paths:.400}", cause) from None
            raise
        return found

    async def _find(self, zone_id: str, lookup: Lookup, wanted: WantedFiles) -> FoundFiles:
        path = wanted.volume.host_path
        try:
            with await lookup.find(path) as place:
                if reason := await complete(asyncio.to_thread(_not_copied, place)):
                    return FoundFiles(reason=reason)
                return await self._scanned(zone_id, place, wanted)
        except OSError as error:
            if error.errno in (errno.ETIMEDOUT, errno.EBUSY):
                raise Refused(OPERATION, path, error.strerror or str(error)) from error
            return FoundFiles(reason=error.strerror or str(error))

    async def _scanned(self, zone_id: str, place: Place, wanted: WantedFiles) -> FoundFiles:
        """Find the files.  Watch before the scan: a change after the scan is then reported."""
        watch = self._watches.add(place.descriptor, wanted.changed) if wanted.changed else None
        try:
            scan = functools.partial(filetree.scan, volume=wanted.volume)
            tree = await self._at(zone_id, wanted.volume, place, scan, FileTree.close)
        except BaseException as error:
            if watch:
                watch.close()
            if isinstance(error, filetree.NotCopied):
                return FoundFiles(reason=str(error))
            raise
        return FoundFiles(tree, watch)

    async def read(self, zone_id: str, tree: FileTree, chunks: Sequence[FileChunk]) -> list[bytes]:
        try:
            return await complete(asyncio.to_thread(filetree.read_chunks, tree, tuple(chunks)))
        except OSError as error:
            raise Broken(OPERATION, f"zone {zone_id}", str(error)) from error

    async def give_back(self, zone_id: str, volume: FileVolume, content: bytes, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout), self._lookups.begin(zone_id) as lookup:
                with await lookup.find(volume.host_path) as place:
                    write = functools.partial(_write, volume=volume, content=content)
                    await self._at(zone_id, volume, place, write)
        except TimeoutError:
            raise TooLate("write", volume.host_path, f"not found within {timeout:g} s") from None
        except OSError as error:
            raise Refused("write", volume.host_path, error.strerror or str(error)) from error

    async def _at(
        self,
        zone_id: str,
        volume: FileVolume,
        place: Place,
        work: Callable[[int], T],
        late: Callable[[T], object] | None = None,
    ) -> T:
        """Work on a place, in a thread with its own descriptor: a hung thread can be abandoned."""
        kept = Place(os.dup(place.descriptor), place.mode)

        def run() -> T:
            with kept:
                return work(kept.descriptor)

        try:
            return await self._calls.run(f"{zone_id} {volume.host_path}", run, late, zone_id)
        except OSError as error:
            if error.errno == errno.EBUSY:
                kept.close()  # the work did not begin, or has ended
            raise


def _drop(found: FoundFiles) -> None:
    found.close()
    if found.watch:
        found.watch.close()


def _not_copied(place: Place) -> str:
    """The reason against a copy; "" if allowed."""
    if not stat.S_ISDIR(place.mode) and not stat.S_ISREG(place.mode):
        return "it is neither a file nor a directory"
    mount = mountinfo.mounts().get(mountinfo.number_of(place.descriptor))
    if mount is None:
        return "it was unmounted just now"
    return "" if mount.kind in mountinfo.LOCAL else f"a file server could hold its file system, {mount.kind}"


def _write(_: int, volume: FileVolume, content: bytes) -> None:
    """Write only into the file that the workload had: its path may now lead to another file."""
    file = open_returned(volume, os.O_WRONLY, volume.file)
    try:
        os.ftruncate(file, 0)
        os.write(file, content)
    finally:
        os.close(file)
