"""Keeps a zone's copies current: gathers changes for a moment, and puts them one after another.

Each zone has a task of its own while copies are pending.  If a zone does not take its copies, the task tries
again with growing delays.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from daemonkit.backoff import Backoff
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from protect.config import Timeouts
from protect.model.copied_files import FilesChanged, FoundFiles, WantedFiles
from protect.model.ports import HostFiles
from protect.state.daemon_lifetime import DaemonLifetime
from protect.state.runtime import ZoneRuntime
from protect.state.zone_files import FileCopy, Key
from protect.workloads import put_files

log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.1
"""Seconds to wait for more changes: a version of a volume consists of several."""
_LONGEST_DELAY_SECONDS = 60.0
_TRIES = 5


@dataclass(frozen=True, slots=True)
class FileRenewal:
    """Keeps the copies of all zones current."""

    files: HostFiles
    lifetime: DaemonLifetime
    timeouts: Timeouts

    def changed(self, zone: ZoneRuntime, key: Key) -> None:
        """Schedule the renewal of a copy, without waiting."""
        files = zone.files
        files.changed.add(key)
        if key not in files.copies:
            return  # the creation of the workload is under way, and checks again after the put
        if files.renewing is None or files.renewing.done():
            files.renewing = self.lifetime.tasks.spawn(
                self._renew_all(zone), f"renew files of zone {zone.id}"
            )

    async def _renew_all(self, zone: ZoneRuntime) -> None:
        retry = Backoff(_GATHER_SECONDS, _LONGEST_DELAY_SECONDS)
        retry.delay()  # the first delay is 0
        delay = _GATHER_SECONDS
        while zone.files.changed and not zone.end:
            failed = False
            try:
                async with (
                    self.lifetime.stopping.bounding("use", "protectd"),
                    zone.end.bounding("use", zone.id),
                ):
                    await asyncio.sleep(delay)
                    for key in sorted(zone.files.changed):
                        failed |= not await self._renewed(zone, key)
            except Fault:
                return  # the zone or the daemon has ended
            if failed:
                delay = retry.delay()
            else:
                retry.reset()
                retry.delay()
                delay = _GATHER_SECONDS

    async def _renewed(self, zone: ZoneRuntime, key: Key) -> bool:
        """Renew a copy; False: try again later."""
        copy = zone.files.copies.get(key)
        zone.files.changed.discard(key)
        if copy is None:
            return True
        try:
            async with zone.files.lock:
                await self.renew(zone, copy)
        except Fault as fault:
            if zone.end or self.lifetime.stopping or not copy.users:
                return True
            log.warning("files are not renewed yet: %s", fault, extra=fields(zone=zone.id, path=_path(copy)))
            zone.files.changed.add(key)
            return False
        return True

    async def renew(self, zone: ZoneRuntime, copy: FileCopy) -> None:
        """Search again, and put the result; the lock of the zone's files is held.

        If the files can no longer be copied, the old copy stays: containers have the copy mounted.
        """
        for _ in range(_TRIES):
            found = await self._find(zone, copy)
            try:
                if found.tree is None:
                    log.warning("files stay as they were: %s", found.reason, extra=fields(path=_path(copy)))
                    return
                await put_files.put_version(self.files, zone, copy, found.tree)
            except FilesChanged:
                continue
            finally:
                found.close()
            checkpoint("files.renewed")
            return
        raise Refused("copy files of", _path(copy), "they change all the time", "")

    async def _find(self, zone: ZoneRuntime, copy: FileCopy) -> FoundFiles:
        """Find the files; sets a new watch before the search if the old watch is gone or of another file."""
        timeout = self.timeouts.call
        if copy.watched or not copy.volume.keep_current:
            found = (await self.files.find(zone.id, [WantedFiles(copy.volume)], timeout))[0]
            if found.tree is None or not copy.watched or found.file == copy.watched_file:
                return found
            found.close()
        wanted = WantedFiles(copy.volume, lambda: self.changed(zone, copy.key))
        found = (await self.files.find(zone.id, [wanted], timeout))[0]
        if found.watch is not None:
            if copy.users:
                copy.watch_by(found.watch, found.file)
            else:
                found.watch.close()
        return found


def _path(copy: FileCopy) -> str:
    return copy.volume.host_path
