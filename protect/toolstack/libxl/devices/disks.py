"""Disks: a loop device (which frees itself), libxl's vbd, and its number told to blkback.

libxl would run Debian's block script for that, which takes seconds and serialises all attaches.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from daemonkit.faults import Exists, Fault
from daemonkit.tasks import join, race
from protect.host.blockdev import Claim, claim
from protect.host.disk_rates.backends import BackendRates
from protect.host.disk_rates.groups import DiskGroups
from protect.host.disk_rates.threads import BackendThreads
from protect.host.loops import Loop
from protect.model.domain.shares import DiskRates
from protect.model.room.modes import refuse_impossible_rates
from protect.model.toolstack import DiskSpec
from protect.toolstack.disks import check_name, open_disk
from protect.toolstack.libxl.config import NO_SCRIPT
from protect.toolstack.libxl.deaths import Known
from protect.toolstack.libxl.workers import Workers
from protect.toolstack.libxl.xenstore.store import AsyncStore
from xenbind import disk as vbd
from xenbind import errors

log = logging.getLogger(__name__)

_CLOSING, _CLOSED = "5", b"6"
"""enum xenbus_state, xen/include/public/io/xenbus.h."""
_BACKENDS = "/local/domain/0/backend/vbd"


def backend_rates(store: AsyncStore, reconnected: Callable[[int], None]) -> BackendRates:
    """The rates that dom0 holds; ``reconnected`` is called with a domain that connects a disk anew."""
    watch = functools.partial(store.watch, _BACKENDS)
    return BackendRates(DiskGroups.find(), BackendThreads(), watch, lambda domid, _: reconnected(domid))


class Disks:
    """Attaches and detaches.  A loop device is held here until then; after a restart blkback alone
    holds it, which is enough to keep it.  A claim is ours alone: blkback opens devices for anybody."""

    def __init__(self, workers: Workers, store: AsyncStore, patience: float, rates: BackendRates) -> None:
        """``patience``: seconds that a guest has to let go of a disk."""
        self._rates = rates
        self._workers = workers
        self._store = store
        self._patience = patience
        self._leaving: dict[tuple[int, str], asyncio.Future[None]] = {}
        self._loops: dict[int, dict[str, Loop | Claim]] = {}

    async def attach(self, domid: int, disk: DiskSpec) -> None:
        """Attach a disk.  Exists: the domain has such a vdev; Missing, Invalid: about the file; XenError."""
        loop = await _open(disk)
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
        # Before its number is there no guest can connect it.
        await self._rates.attaching(domid, number)
        wanted = vbd.BlockDevice(disk.vdev, str(device), disk.readonly, NO_SCRIPT)
        backend = await self._workers.run(vbd.add, domid, wanted)
        try:
            value = f"{os.major(number):x}:{os.minor(number):x}"
            await self._store.write_below(backend, "physical-device", value)
        except BaseException:
            await self._workers.run(vbd.remove, domid, disk.vdev, force=True)
            raise

    async def detach(self, known: Known, vdev: str) -> None:
        """An unknown vdev succeeds.  A guest that does not agree in time loses it by force; one whose end has
        been declared, at once.

        Whoever asks for the same one meanwhile waits with the first.
        """
        leaving = self._leaving.get((known.watch, vdev))
        if leaving is None:
            leaving = asyncio.ensure_future(self._detach(known, vdev))
            self._leaving[known.watch, vdev] = leaving
            leaving.add_done_callback(lambda _: self._leaving.pop((known.watch, vdev)))
        await join(leaving)

    async def _detach(self, known: Known, vdev: str) -> None:
        async with known.lock:
            state = await self._ask_back(known, vdev)
        if state:
            # Without the lock, and in no thread: all disks of a guest that keeps them take as long as one.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await race(self._closed(state), known.abandoned.wait())
        async with known.lock:
            if known.forgotten:
                return
            with suppress(errors.DeviceNotFound):
                if (device := await self._device(known.domid, vdev)) is not None:
                    await self._rates.detaching(known.domid, device)
                await self._workers.run(vbd.remove, known.domid, vdev, force=True)
            await self._rates.detached(known.domid, vdev)
            if loop := self._loops.get(known.domid, {}).pop(vdev, None):
                loop.close()

    async def _ask_back(self, known: Known, vdev: str) -> str:
        """Ask the guest to let go of it, as libxl does: the path of the state to wait for, "" for none."""
        if known.forgotten or known.abandoned.is_set():
            return ""
        try:
            backend = await self._workers.ask(vbd.backend, known.domid, vdev)
        except errors.DeviceNotFound:
            return ""
        state = f"{backend}/state"
        if await self._store.read(state) in (None, _CLOSED):
            return ""
        try:
            await self._store.write_below(backend, "online", "0")
            await self._store.write_below(backend, "state", _CLOSING)
        except FileNotFoundError:  # its domain was destroyed meanwhile, by somebody else
            return ""
        return state

    async def _closed(self, state: str) -> None:
        async with self._store.watch(state) as changed:
            while await self._store.read(state) not in (None, _CLOSED):
                await changed.wait()
                changed.clear()

    async def claim_again(self, domids: Iterable[int]) -> None:
        """Claim the writable disks of domains that an earlier process made."""
        for domid in domids:
            await self._claim(domid)

    async def _claim(self, domid: int) -> None:
        for disk in await self._workers.ask(vbd.disks, domid):
            if disk.readonly or disk.vdev in self._loops.get(domid, {}):
                continue
            try:
                held = await asyncio.to_thread(claim, Path(disk.device), readonly=False)
            except Fault as fault:
                log.error("%s of domain %d may have another user: %s", disk.vdev, domid, fault)
            else:
                self._loops.setdefault(domid, {})[disk.vdev] = held

    async def hold_rates(self, known: Known, rates: DiskRates) -> None:
        """Hold the rates for its disks.  Refused: dom0's kernel cannot; XenError; OSError."""
        refuse_impossible_rates("set disk rates", known.name, rates, possible=self._rates.usable)
        if not self._rates.usable:
            return
        asked = rates or self._rates.holds(known.domid)
        vdevs = await self.list(known.domid) if asked else []
        found = [await self._device(known.domid, vdev) for vdev in vdevs]
        devices = [device for device in found if device is not None]
        await self._rates.hold(known.domid, str(known.uuid), rates, devices)

    async def _device(self, domid: int, vdev: str) -> int | None:
        """What is behind a disk (as st_rdev has it), None while blkback has not been told; DeviceNotFound."""
        backend = await self._workers.ask(vbd.backend, domid, vdev)
        number = await self._store.read(f"{backend}/physical-device")
        if not number:
            return None
        major, minor = number.split(b":")
        return os.makedev(int(major, 16), int(minor, 16))

    async def lift_rates(self, known: Known) -> None:
        """Let go of what the rates of a domain hold back: its end would wait for that."""
        await self._rates.ending(str(known.uuid))

    async def remove_strays(self, mine: Iterable[UUID]) -> None:
        """Remove what held the rates of domains other than these."""
        await self._rates.remove_strays({str(uuid) for uuid in mine})

    async def forget_rates(self, known: Known) -> None:
        """Remove what held the rates of a domain that is gone."""
        await self._rates.forget(known.domid, str(known.uuid))

    async def list(self, domid: int) -> list[str]:
        """The vdevs that are attached now."""
        return sorted(disk.vdev for disk in await self._workers.ask(vbd.disks, domid))

    def forget(self, domid: int) -> None:
        """Close the loop devices of a domain that is gone."""
        for loop in self._loops.pop(domid, {}).values():
            loop.close()

    def close(self) -> None:
        """Close all loop devices; blkback keeps those that domains use."""
        for domid in list(self._loops):
            self.forget(domid)


async def _open(disk: DiskSpec) -> Loop | Claim | None:
    """What holds the host's side of a disk until it is detached.  Missing, Invalid, Refused."""
    if not disk.exclusive:
        return await open_disk(disk)
    check_name(disk)
    return await asyncio.to_thread(claim, disk.path, readonly=disk.readonly)
