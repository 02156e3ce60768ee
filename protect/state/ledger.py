"""The ledger of zone memory on this host: every byte is promised once.

A promise covers a zone's memory and the hypervisor's overhead for the domain.  Memory for another zone is the
hypervisor's free memory without promises that domains have not used yet::

    free = hypervisor's free - reserve - sum of (promised - held), for each zone and reservation

Memory of others (dom0, foreign domains) is never promised, and no byte counts twice: first as promised, and
once the domain has taken the memory, as no longer free in the hypervisor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace

from daemonkit.faults import Exhausted
from daemonkit.quantity import in_mib
from protect.model.capacity.reservation import Capacity

_RESERVE = "reserve memory"
WATCHER_LIMIT = 64
"""Most watchers of the capacity at once."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Report of the hypervisor, in bytes; ``held``: by the domain of each zone.

    ``held`` is read before ``free``: memory taken between the readings is missing from both, never in both.
    """

    free: int
    held: Mapping[str, int] = field(default_factory=dict)
    foreign: int = 0
    dom0: int = 0
    sharing: int = 0


@dataclass(frozen=True, slots=True)
class _Promise:
    size: int
    reservations: tuple[str, ...] = ()


class Ledger:
    """Promises to zones, and by reservations.

    ``limit``: for all promises together.  0: no limit, and ``reserve`` bytes stay free.
    """

    def __init__(self, limit: int, reserve: int = 0) -> None:
        self._limit = limit
        self._reserve = 0 if limit else reserve
        self._zones: dict[str, _Promise] = {}
        self._reservations: dict[str, int] = {}
        self._sample: MemorySample | None = None
        self._watchers: set[asyncio.Event] = set()
        self._closed = False

    # -- figures

    @property
    def reserved_bytes(self) -> int:
        """All reservations, and memory of zones beyond their reservations."""
        beyond = (max(0, one.size - self._reserved_for(one)) for one in self._zones.values())
        return sum(self._reservations.values()) + sum(beyond)

    @property
    def total_bytes(self) -> int:
        """Memory for all zones together, by the last sample."""
        if self._sample is None:
            return self._limit
        held = (min(one.size, self._sample.held.get(zone, 0)) for zone, one in self._zones.items())
        physical = max(0, self._sample.free - self._reserve + sum(held))
        return min(self._limit, physical) if self._limit else physical

    @property
    def free_bytes(self) -> int:
        """Bytes left for another zone; 0 if the promises exceed the memory."""
        return max(0, self.total_bytes - self.reserved_bytes)

    def capacity(self) -> Capacity:
        sample = self._sample or MemorySample(0)
        return Capacity(
            total=self.total_bytes,
            promised=self.reserved_bytes,
            free=self.free_bytes,
            reservations=sum(self._reservations.values()),
            reservation_count=len(self._reservations),
            foreign=sample.foreign,
            dom0=sample.dom0,
            sharing=sample.sharing,
        )

    def sample(self, sample: MemorySample) -> None:
        """Take over a new sample."""
        if sample != self._sample:
            self._sample = sample
            self._changed()

    # -- zones

    def admit(self, zone_id: str, size: int, reservations: tuple[str, ...] = ()) -> None:
        """Promise memory to a new zone, out of its reservations first.

        Exhausted, with the numbers: the memory is short, or another zone has the reservation.
        """
        for other, one in self._zones.items():
            if taken := set(reservations).intersection(one.reservations):
                raise Exhausted(_RESERVE, f"zone {zone_id}", f"zone {other} has reservation {min(taken)}")
        promise = _Promise(size, reservations)
        self._check(f"zone {zone_id}", max(0, size - self._reserved_for(promise)))
        self.adopt(zone_id, size, reservations)

    def adopt(self, zone_id: str, size: int, reservations: tuple[str, ...] = ()) -> None:
        """Promise memory to an existing zone, even beyond the free memory."""
        self._zones[zone_id] = _Promise(size, reservations)
        self._changed()

    def change(self, zone_id: str, size: int) -> None:
        """Change the promise to a zone.  Exhausted, with the numbers: the memory is short."""
        now = self._zones.get(zone_id, _Promise(0))
        beyond = [max(0, one - self._reserved_for(now)) for one in (now.size, size)]
        if beyond[1] > beyond[0]:
            self._check(f"zone {zone_id}", beyond[1] - beyond[0])
        self.adopt(zone_id, size, now.reservations)

    def release(self, zone_id: str) -> None:
        """Take back the promise to a zone without a domain.  An unknown zone succeeds."""
        if self._zones.pop(zone_id, None):
            self._give_back(zone_id)
            self._changed()

    # -- reservations

    def reserve(self, reservation_id: str, size: int) -> None:
        """Promise memory by a reservation.  Exhausted, with the numbers: the memory is short."""
        self._check(f"reservation {reservation_id}", size)
        self.adopt_reservation(reservation_id, size)

    def adopt_reservation(self, reservation_id: str, size: int) -> None:
        """Take up an existing reservation, even beyond the free memory."""
        self._reservations[reservation_id] = size
        self._changed()

    def release_reservation(self, reservation_id: str) -> None:
        """Take a reservation back.  Memory in a zone stays promised to the zone."""
        if self._reservations.pop(reservation_id, None) is not None:
            self._changed()

    def holder(self, reservation_id: str) -> str:
        """The present zone of a reservation, or ""."""
        return next((zone for zone, one in self._zones.items() if reservation_id in one.reservations), "")

    # -- watching

    async def watch(self) -> AsyncGenerator[Capacity, None]:
        """The capacity, now and after each change; slow watchers miss some.  Exhausted: too many watchers."""
        if len(self._watchers) >= WATCHER_LIMIT:
            raise Exhausted("watch capacity", "", f"there are {WATCHER_LIMIT} watchers already")
        changed = asyncio.Event()
        self._watchers.add(changed)
        last: Capacity | None = None
        try:
            while not self._closed:
                changed.clear()
                if (now := self.capacity()) != last:
                    last = now
                    yield now
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def close(self) -> None:
        """End every watch, for an orderly stop."""
        self._closed = True
        self._changed()

    # -- inside

    def _give_back(self, zone_id: str) -> None:
        """Count the memory of the zone's domain as free, until the next sample confirms this."""
        if self._sample and (size := self._sample.held.get(zone_id)):
            held = {zone: other for zone, other in self._sample.held.items() if zone != zone_id}
            self._sample = replace(self._sample, free=self._sample.free + size, held=held)

    def _reserved_for(self, promise: _Promise) -> int:
        return sum(self._reservations.get(one, 0) for one in promise.reservations)

    def _check(self, subject: str, size: int) -> None:
        if size <= self.free_bytes:
            return
        hint = "destroy zones, release reservations, or ask for less"
        raise Exhausted(_RESERVE, subject, self._shortage(size), hint)

    def _shortage(self, size: int) -> str:
        now = self.capacity()
        holders = f"{len(self._zones)} zones and {len(self._reservations)} reservations"
        parts = [f"{holders} have {in_mib(now.promised)}"]
        parts += [f"other domains {in_mib(now.foreign)}"] if now.foreign else []
        parts += [f"dom0 {in_mib(now.dom0)}"] if now.dom0 else []
        parts += [f"kept free are {in_mib(self._reserve)}"] if self._reserve else []
        free = f"{in_mib(now.free)} of {in_mib(now.total)}"
        return f"it needs {in_mib(size)}, free are {free} ({', '.join(parts)})"

    def _changed(self) -> None:
        for watcher in self._watchers:
            watcher.set()
