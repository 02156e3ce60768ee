"""Disks: a loop device (which frees itself), libxl's vbd, and its number told to blkback.

libxl would run Debian's block script for that, which takes seconds and serialises all attaches.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from daemonkit.faults import Exists
from protect.host.loops import Loop
from protect.model.toolstack import DiskSpec
from protect.toolstack.disks import open_disk
from protect.toolstack.libxl.config import NO_SCRIPT
from protect.toolstack.libxl.store import AsyncStore
from protect.toolstack.libxl.workers import Workers
from xenbind import disk as vbd
from xenbind import errors


class Disks:
    """Attaches and detaches.  A loop device is held here until then; after a restart blkback alone
    holds it, which is enough to keep it."""

    def __init__(self, workers: Workers, store: AsyncStore) -> None:
        self._workers = workers
        self._store = store
        self._loops: dict[int, dict[str, Loop]] = {}

    async def attach(self, domid: int, disk: DiskSpec) -> None:
        """Exists: the domain has such a vdev; Missing, Invalid: the file; XenError."""
        loop = await open_disk(disk)
        device = loop.path if loop else disk.path
        try:
            await self._attach(domid, disk, device)
        except errors.DeviceExists:
            if loop:
                loop.close()
            raise Exists("attach disk", f"{disk.vdev} of domain {domid}", "attached already") from None
        except BaseException:
            if loop:
                loop.close()
            raise
        if loop:
            self._loops.setdefault(domid, {})[disk.vdev] = loop

    async def _attach(self, domid: int, disk: DiskSpec, device: Path) -> None:
        number = os.stat(device).st_rdev
        wanted = vbd.BlockDevice(disk.vdev, str(device), disk.readonly, NO_SCRIPT)
        backend = await self._workers.run(vbd.add, domid, wanted)
        try:
            value = f"{os.major(number):x}:{os.minor(number):x}"
            await self._store.write(f"{backend}/physical-device", value)
        except BaseException:
            await self._workers.run(vbd.remove, domid, disk.vdev, force=True)
            raise

    async def detach(self, domid: int, vdev: str) -> None:
        """An unknown vdev succeeds.  A guest that does not agree in time loses it by force."""
        with suppress(errors.DeviceNotFound):
            try:
                await self._workers.run(vbd.remove, domid, vdev)
            except errors.DeviceNotFound:
                raise
            except errors.XenError:
                await self._workers.run(vbd.remove, domid, vdev, force=True)
        if loop := self._loops.get(domid, {}).pop(vdev, None):
            loop.close()

    async def list(self, domid: int) -> list[str]:
        """The vdevs attached now."""
        return sorted(disk.vdev for disk in await self._workers.run(vbd.disks, domid))

    def forget(self, domid: int) -> None:
        """The domain is gone: close its loop devices."""
        for loop in self._loops.pop(domid, {}).values():
            loop.close()

    def close(self) -> None:
        """Close all loop devices; blkback keeps those that domains use."""
        for domid in list(self._loops):
            self.forget(domid)
