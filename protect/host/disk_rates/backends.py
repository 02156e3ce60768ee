"""Keeps blkback's threads in the groups of their domains, and notices guests that reconnect a disk.

Whenever a guest connects a disk, the kernel starts new threads in the root group, without rates.  A zone
connects a disk once, after the attach.  A second connect would shed the rates, and is reported to the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

from protect.host.disk_rates.groups import DiskGroups
from protect.host.disk_rates.threads import BackendThread, BackendThreads
from protect.model.domain.shares import DiskRates

log = logging.getLogger(__name__)

Watch = Callable[[], AbstractAsyncContextManager[asyncio.Event]]
"""An event that is set at every change of a backend, and once at first."""

_PAUSE_SECONDS = (0.05, 0.1, 0.4, 2.0, 30.0)
"""Seconds between looks after a change.  xenstore reports the change before the threads begin, and nothing
reports their beginning.

blkback may have to write back the device's pages in between; therefore the last pause repeats.
"""


@dataclass(slots=True)
class _Held:
    """A domain with rates.  ``ended``: disks with a thread that has ended since the attach."""

    name: str
    rates: DiskRates
    placed: dict[int, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


def can_hold_rates() -> bool:
    """Whether this kernel can enforce rates on blkback's threads."""
    return DiskGroups.find().usable and BackendThreads().usable


class BackendRates:
    """Rates of the disks of domains; errors are OSError."""

    def __init__(
        self,
        groups: DiskGroups,
        threads: BackendThreads,
        watch: Watch,
        reconnected: Callable[[int, str], None],
    ) -> None:
        """``reconnected`` is called with a domain and its disk, at least once."""
        self._groups = groups
        self._threads = threads
        self._watch = watch
        self._reconnected = reconnected
        self._held: dict[int, _Held] = {}
        self._lock = asyncio.Lock()
        """Held from a look at the threads until its results are applied."""
        self._patrol: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        """Whether this kernel can enforce rates."""
        return self._groups.usable and self._threads.usable

    async def hold(self, domid: int, name: str, rates: DiskRates, devices: Iterable[int]) -> None:
        """Enforce the rates for the domain's present disks ``devices``, and for later disks.

        ``name``: the group's name.  A domain without rates needs no group and gets none.
        """
        async with self._lock:
            held = self._held.get(domid)
            if held is None and not rates:
                await asyncio.to_thread(self._groups.lift, name)
                return
            await asyncio.to_thread(self._limit, name, rates, list(devices))
            if held is None:
                self._held[domid] = _Held(name, rates)
            else:
                held.rates = rates
        self._begin()
        await self.look()

    def _limit(self, name: str, rates: DiskRates, devices: Iterable[int]) -> None:
        self._groups.make(name)
        if not rates:
            # Lift the rates of former devices too: the kernel reuses numbers of loop devices.
            self._groups.lift(name)
            return
        for device in devices:
            self._groups.throttle(name, device, rates)

    def holds(self, domid: int) -> bool:
        """Whether the domain has been given rates."""
        return domid in self._held

    async def attaching(self, domid: int, device: int) -> None:
        """Prepare for a new disk; call this before the guest can connect the disk."""
        if held := self._held.get(domid):
            await asyncio.to_thread(self._groups.throttle, held.name, device, held.rates)

    async def detaching(self, domid: int, device: int) -> None:
        """Lift the rates of a disk before its detach: throttled I/O would delay the detach."""
        if held := self._held.get(domid):
            await asyncio.to_thread(self._groups.throttle, held.name, device, DiskRates())

    async def ending(self, name: str) -> None:
        """Lift the rates of a domain before its end: throttled I/O would delay the end."""
        await asyncio.to_thread(self._groups.lift, name)

    async def detached(self, domid: int, vdev: str) -> None:
        """Forget a detached disk, whose threads have ended; another disk may reuse its name."""
        async with self._lock:
            if held := self._held.get(domid):
                held.placed = {pid: disk for pid, disk in held.placed.items() if disk != vdev}
                held.ended.discard(vdev)

    async def forget(self, domid: int, name: str) -> None:
        """Remove the group and the records of a domain that is gone."""
        async with self._lock:
            self._held.pop(domid, None)
        await asyncio.to_thread(self._groups.remove, name)

    async def remove_strays(self, mine: Container[str]) -> None:
        """Remove the groups of domains that are gone; keep the groups named in ``mine``."""
        await asyncio.to_thread(self._groups.remove_strays, mine)

    async def look(self) -> None:
        """Find threads that are not in their group yet, and place them."""
        async with self._lock:
            alive = await asyncio.to_thread(self._threads.look)
            for domid, held in self._held.items():
                mine = [thread for thread in alive if thread.domid == domid]
                new = _news(held, mine)
                await asyncio.to_thread(self._place, held.name, new)
                held.placed.update((thread.pid, thread.vdev) for thread in new)
                for vdev in {thread.vdev for thread in new} & held.ended:
                    log.warning("domain %s has connected its disk %s anew", domid, vdev)
                    self._reconnected(domid, vdev)

    def _place(self, name: str, threads: Iterable[BackendThread]) -> None:
        for thread in threads:
            self._groups.place(name, thread.pid)

    def _begin(self) -> None:
        if self._patrol is None or self._patrol.done():
            self._patrol = asyncio.create_task(self._follow(), name="rates of disks")

    async def _follow(self) -> None:
        """Look after each change, and after the pauses."""
        try:
            async with self._watch() as changed:
                looks = 0
                while True:
                    changed.clear()
                    await self._look_or_log()
                    await asyncio.sleep(_PAUSE_SECONDS[0])  # at most one look in this time
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_PAUSE_SECONDS[looks]):
                            await changed.wait()
                    looks = 0 if changed.is_set() else min(looks + 1, len(_PAUSE_SECONDS) - 1)
        except OSError as error:
            log.critical("rates of disks are not held for disks that are connected from now on: %s", error)

    async def _look_or_log(self) -> None:
        try:
            await self.look()
        except OSError as error:
            log.error("a thread of a disk stays without its rates: %s", error)

    async def close(self) -> None:
        """Stop looking; enforced rates stay."""
        if self._patrol is not None:
            self._patrol.cancel()
            await asyncio.wait([self._patrol])


def _news(held: _Held, alive: list[BackendThread]) -> list[BackendThread]:
    """The unplaced threads; also notes the disks of ended threads."""
    pids = {thread.pid for thread in alive}
    held.ended |= {vdev for pid, vdev in held.placed.items() if pid not in pids}
    held.placed = {pid: vdev for pid, vdev in held.placed.items() if pid in pids}
    return [thread for thread in alive if thread.pid not in held.placed]
