"""Keeps blkback's threads in the groups of their domains, and notices guests that connect a disk anew.

The kernel begins each thread in the root group, without rates, whenever a guest connects a disk.  A zone does
so once, when the disk is attached: whoever does it again wants new threads, and is told to the caller.
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

_PAUSES = (0.05, 0.1, 0.4, 2.0, 30.0)
"""Seconds between looks after a change, which is told before the threads begin; their beginning is not.

blkback may have to write back the device's pages in between, hence the last one, again and again.
"""


@dataclass(slots=True)
class _Held:
    """A domain with rates.  ``ended`` has the disks of which a thread has ended since they were attached."""

    name: str
    rates: DiskRates
    placed: dict[int, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


def can_hold_rates() -> bool:
    """Whether this kernel can hold the rates of blkback's threads."""
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
        """``reconnected`` is called with a domain and its disk, once or more."""
        self._groups = groups
        self._threads = threads
        self._watch = watch
        self._reconnected = reconnected
        self._held: dict[int, _Held] = {}
        self._lock = asyncio.Lock()
        """Held from a look at the threads until what follows from it is done."""
        self._patrol: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        """Whether this kernel can hold rates."""
        return self._groups.usable and self._threads.usable

    async def hold(self, domid: int, name: str, rates: DiskRates, devices: Iterable[int]) -> None:
        """Hold the rates for the disks ``devices`` that the domain has, and for those that it will have.

        ``name``: of its group.  It may have none before, and then without rates it gets none.
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
            # Also of devices that it has no more: the numbers of loop devices are used again.
            self._groups.lift(name)
            return
        for device in devices:
            self._groups.throttle(name, device, rates)

    def holds(self, domid: int) -> bool:
        """Whether the domain has been given rates."""
        return domid in self._held

    async def attaching(self, domid: int, device: int) -> None:
        """The domain gets a disk: called before its guest can connect it."""
        if held := self._held.get(domid):
            await asyncio.to_thread(self._groups.throttle, held.name, device, held.rates)

    async def detaching(self, domid: int, device: int) -> None:
        """The domain is about to lose a disk: nothing is to wait for what its rates hold back."""
        if held := self._held.get(domid):
            await asyncio.to_thread(self._groups.throttle, held.name, device, DiskRates())

    async def ending(self, name: str) -> None:
        """The domain is about to end: nothing is to wait for what its rates hold back."""
        await asyncio.to_thread(self._groups.lift, name)

    async def detached(self, domid: int, vdev: str) -> None:
        """It has lost the disk, whose threads have ended; another one may get its name."""
        async with self._lock:
            if held := self._held.get(domid):
                held.placed = {pid: disk for pid, disk in held.placed.items() if disk != vdev}
                held.ended.discard(vdev)

    async def forget(self, domid: int, name: str) -> None:
        """Remove what there is of a domain that is gone."""
        async with self._lock:
            self._held.pop(domid, None)
        await asyncio.to_thread(self._groups.remove, name)

    async def remove_strays(self, mine: Container[str]) -> None:
        """Remove the groups of domains that are gone, but for those that are named so."""
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
        """Look after each change, and now and then."""
        try:
            async with self._watch() as changed:
                looks = 0
                while True:
                    changed.clear()
                    await self._look_or_log()
                    await asyncio.sleep(_PAUSES[0])  # however many changes there are
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_PAUSES[looks]):
                            await changed.wait()
                    looks = 0 if changed.is_set() else min(looks + 1, len(_PAUSES) - 1)
        except OSError as error:
            log.critical("rates of disks are not held for disks that are connected from now on: %s", error)

    async def _look_or_log(self) -> None:
        try:
            await self.look()
        except OSError as error:
            log.error("a thread of a disk stays without its rates: %s", error)

    async def close(self) -> None:
        """Look no more; what is held stays held."""
        if self._patrol is not None:
            self._patrol.cancel()
            await asyncio.wait([self._patrol])


def _news(held: _Held, alive: list[BackendThread]) -> list[BackendThread]:
    """The threads that are not placed yet; notes the disks of those that are no more."""
    pids = {thread.pid for thread in alive}
    held.ended |= {vdev for pid, vdev in held.placed.items() if pid not in pids}
    held.placed = {pid: vdev for pid, vdev in held.placed.items() if pid in pids}
    return [thread for thread in alive if thread.pid not in held.placed]
