"""Disks: a loop device (frees itself), libxl's vbd, and the device number for blkback.

libxl would run Debian's block script to write the number.  The script takes seconds and serialises all
attaches.
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
from protect.model.capacity.modes import refuse_impossible_rates
from protect.model.domain.shares import DiskRates
from protect.model.toolstack import DiskSpec
from protect.toolstack.libxl.config import NO_SCRIPT
from protect.toolstack.libxl.deaths import Known
from protect.toolstack.libxl.workers import Workers
from protect.toolstack.libxl.xenstore.store import AsyncStore
from protect.toolstack.open_disk import check_name, open_disk
from xenbind import disk as vbd
from xenbind import errors

log = logging.getLogger(__name__)

_CLOSING, _CLOSED = "5", b"6"
"""enum xenbus_state, xen/include/public/io/xenbus.h."""
_BACKENDS = "/local/domain/0/backend/vbd"


def backend_rates(store: AsyncStore, reconnected: Callable[[int], None]) -> BackendRates:
    """The rates that dom0 enforces.  ``reconnected`` is called with a domain that connects a disk anew."""
    watch = functools.partial(store.watch, _BACKENDS)
    return BackendRates(DiskGroups.find(), BackendThreads(), watch, lambda domid, _: reconnected(domid))


class Disks:
    """Attaches and detaches disks.

    A loop device is held here until detach; after a restart blkback alone holds it, and keeps it alive.
    Claims are ours alone: blkback's open of a device excludes nobody.
    """

    def __init__(self, workers: Workers, store: AsyncStore, patience: float, rates: BackendRates) -> None:
        """``patience``: seconds that a guest has to release a disk."""
        self._rates = rates
        self._workers = workers
        self._store = store
        self._patience = patience
        self._leaving: dict[tuple[int, str], asyncio.Future[None]] = {}
        self._loops: dict[int, dict[str, Loop | Claim]] = {}

    async def attach(self, domid: int, disk: DiskSpec) -> None:
        """Attach a disk.  Exists: the domain has this vdev; Missing, Invalid: about the file; XenError."""
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
        # No guest can connect the disk before its number is written.
        await self._rates.attaching(domid, number)
        wanted = vbd.BlockDevice(disk.vdev, str(device), disk.readonly, NO_SCRIPT)
        backend = await self._workers.run(vbd.attach_disk, domid, wanted)
        try:
            value = f"{os.major(number):x}:{os.minor(number):x}"
            await self._store.write_below(backend, "physical-device", value)
        except BaseException:
            await self._workers.run(vbd.detach_disk, domid, disk.vdev, force=True)
            raise

    async def detach(self, known: Known, vdev: str) -> None:
        """Detach a disk; an unknown vdev is no error.

        A guest that does not agree in time loses the disk by force; a domain declared dead loses it at once.
        A concurrent detach of the same disk waits for the first.
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
            # Without the lock and without a thread: the waits for all disks of a stubborn guest run in
            # parallel.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await race(self._closed(state), known.abandoned.wait())
        async with known.lock:
            if known.forgotten:
                return
            with suppress(errors.DeviceNotFound):
                if (device := await self._device(known.domid, vdev)) is not None:
                    await self._rates.detaching(known.domid, device)
                await self._workers.run(vbd.detach_disk, known.domid, vdev, force=True)
            await self._rates.detached(known.domid, vdev)
            if loop := self._loops.get(known.domid, {}).pop(vdev, None):
                loop.close()

    async def _ask_back(self, known: Known, vdev: str) -> str:
        """Ask the guest to release the disk, like libxl.  Returns the path of the state to watch, or ""."""
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
        except FileNotFoundError:  # another program destroyed the domain
            return ""
        return state

    async def _closed(self, state: str) -> None:
        async with self._store.watch(state) as changed:
            while await self._store.read(state) not in (None, _CLOSED):
                await changed.wait()
                changed.clear()

    async def claim_again(self, domids: Iterable[int]) -> None:
        """Claim the writable disks of domains from an earlier process."""
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
        """Enforce the rates for the domain's disks.  Refused: dom0's kernel cannot; XenError; OSError."""
        refuse_impossible_rates("set disk rates", known.name, rates, possible=self._rates.usable)
        if not self._rates.usable:
            return
        asked = rates or self._rates.holds(known.domid)
        vdevs = await self.list(known.domid) if asked else []
        found = [await self._device(known.domid, vdev) for vdev in vdevs]
        devices = [device for device in found if device is not None]
        await self._rates.hold(known.domid, str(known.uuid), rates, devices)

    async def _device(self, domid: int, vdev: str) -> int | None:
        """The device behind a disk (as st_rdev); None before blkback knows the number; DeviceNotFound."""
        backend = await self._workers.ask(vbd.backend, domid, vdev)
        number = await self._store.read(f"{backend}/physical-device")
        if not number:
            return None
        major, minor = number.split(b":")
        return os.makedev(int(major, 16), int(minor, 16))

    async def lift_rates(self, known: Known) -> None:
        """Lift the rates of a domain: throttled I/O would delay its end."""
        await self._rates.ending(str(known.uuid))

    async def remove_strays(self, mine: Iterable[UUID]) -> None:
        """Remove the rate groups of all domains except ``mine``."""
        await self._rates.remove_strays({str(uuid) for uuid in mine})

    async def forget_rates(self, known: Known) -> None:
        """Remove the rate groups of a destroyed domain."""
        await self._rates.forget(known.domid, str(known.uuid))

    async def list(self, domid: int) -> list[str]:
        """The attached vdevs."""
        return sorted(disk.vdev for disk in await self._workers.ask(vbd.disks, domid))

    def forget(self, domid: int) -> None:
        """Close the loop devices of a destroyed domain."""
        for loop in self._loops.pop(domid, {}).values():
            loop.close()

    def close(self) -> None:
        """Close all loop devices; blkback keeps the devices in use."""
        for domid in list(self._loops):
            self.forget(domid)


async def _open(disk: DiskSpec) -> Loop | Claim | None:
    """Open the host's side of a disk; the result holds it until detach.  Missing, Invalid, Refused."""
    if not disk.exclusive:
        return await open_disk(disk)
    check_name(disk)
    return await asyncio.to_thread(claim, disk.path, readonly=disk.readonly)
