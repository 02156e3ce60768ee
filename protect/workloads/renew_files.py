"""Keep a zone's copies current: changes are gathered for a moment, and put one after another.

Each zone has a task of its own while there is something to do.  One that does not take its copies is asked
again, later and later.
"""

from __future__ import annotations

import asyncio
import logging

from daemonkit.backoff import Backoff
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from protect.model.files import FilesChanged, FoundFiles, WantedFiles
from protect.state.files import FileCopy, Key
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime
from protect.workloads import put_files

log = logging.getLogger(__name__)

_GATHER = 0.1
"""Seconds for more changes to come in: a version of a volume is several."""
_LONGEST = 60.0
_TRIES = 5


def changed(manager: ZoneManager, zone: ZoneRuntime, key: Key) -> None:
    """A copy is to be renewed; does not wait."""
    files = zone.files
    files.changed.add(key)
    if key not in files.copies:
        return  # of a workload that is being created, which looks here once it has put them
    if files.renewing is None or files.renewing.done():
        files.renewing = manager.tasks.spawn(_renew_all(manager, zone), f"renew files of zone {zone.id}")


async def _renew_all(manager: ZoneManager, zone: ZoneRuntime) -> None:
    retry = Backoff(_GATHER, _LONGEST)
    retry.delay()  # the first is none
    delay = _GATHER
    while zone.files.changed and not zone.end:
        failed = False
        try:
            async with manager.stopping.bounding("use", "protectd"), zone.end.bounding("use", zone.id):
                await asyncio.sleep(delay)
                for key in sorted(zone.files.changed):
                    failed |= not await _renewed(manager, zone, key)
        except Fault:
            return  # one of the two has ended
        if failed:
            delay = retry.delay()
        else:
            retry.reset()
            retry.delay()
            delay = _GATHER


async def _renewed(manager: ZoneManager, zone: ZoneRuntime, key: Key) -> bool:
    """False: it stays to be done."""
    copy = zone.files.copies.get(key)
    zone.files.changed.discard(key)
    if copy is None:
        return True
    try:
        async with zone.files.lock:
            await renew(manager, zone, copy)
    except Fault as fault:
        if zone.end or manager.stopping or not copy.users:
            return True
        log.warning("files are not renewed yet: %s", fault, extra=fields(zone=zone.id, path=_path(copy)))
        zone.files.changed.add(key)
        return False
    return True


async def renew(manager: ZoneManager, zone: ZoneRuntime, copy: FileCopy) -> None:
    """Look, and put what is there; the lock of the zone's files is held.

    What cannot be copied any more leaves the copy as it is: containers have it mounted.
    """
    for _ in range(_TRIES):
        found = await _find(manager, zone, copy)
        try:
            if found.tree is None:
                log.warning("files stay as they were: %s", found.reason, extra=fields(path=_path(copy)))
                return
            await put_files.put(manager, zone, copy, found.tree)
        except FilesChanged:
            continue
        finally:
            found.close()
        checkpoint("files.renewed")
        return
    raise Refused("copy files of", _path(copy), "they change all the time", "")


async def _find(manager: ZoneManager, zone: ZoneRuntime, copy: FileCopy) -> FoundFiles:
    """With a watch from before the look, if it has none any more, or one of what is not at the path now."""
    timeout = manager.config.timeouts.call
    if copy.watched or not copy.volume.keep_current:
        found = (await manager.files.find(zone.id, [WantedFiles(copy.volume)], timeout))[0]
        if found.tree is None or not copy.watched or found.file == copy.watched_file:
            return found
        found.close()
    wanted = WantedFiles(copy.volume, lambda: changed(manager, zone, copy.key))
    found = (await manager.files.find(zone.id, [wanted], timeout))[0]
    if found.watch is not None:
        if copy.users:
            copy.watch_by(found.watch, found.file)
        else:
            found.watch.close()
    return found


def _path(copy: FileCopy) -> str:
    return copy.volume.host_path
