"""Reservations: make, bind to pods, release; recorded before the answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exhausted, Exists, Missing, Refused
from daemonkit.logs import fields
from protect.config import NamedDevice, ZoneLimits
from protect.model.capacity.reservation import Reservation
from protect.model.toolstack import Toolstack
from protect.model.zone import ZoneState
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.timestamps import now_ns
from protect.workloads.devices.find import configured
from protect.zones.capacity.host_memory import MemorySampler, memory_within, reservation_promise

log = logging.getLogger(__name__)

PODS_LIMIT = 32
"""Most pods of one reservation."""
_MAKE, _BIND = "make reservation", "bind reservation"


@dataclass(frozen=True, slots=True)
class ReservationBook:
    """Makes, binds and releases reservations of memory and devices."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    sampler: MemorySampler
    named_devices: Mapping[str, NamedDevice]
    limits: ZoneLimits

    def memory_of(self, reservation_id: str, total_bytes: int, vcpus: int) -> int:
        """The zone's memory in a reservation of ``total_bytes``; an existing reservation keeps its memory."""
        found = self.registry.reservations.get(reservation_id)
        if found and reservation_promise(self.toolstack, found.memory_bytes, found.vcpus) <= total_bytes:
            return found.memory_bytes
        return memory_within(self.toolstack, total_bytes, vcpus)

    async def make(self, wanted: Reservation) -> Reservation:
        """Make a reservation.  A repeated call only adds pods.

        Exists: the id has a reservation of other sizes or devices.  Exhausted, with the numbers: the memory
        is short, or too many reservations exist.  Missing, Refused: a device does not exist, or is taken.
        """
        if wanted.id not in self.registry.reservations:
            await self.sampler.refresh()
        # Nothing is awaited from here on: two reservations at once cannot both count on the same memory.
        if (found := self.registry.reservations.get(wanted.id)) is not None:
            return self._again(found, wanted)
        if (count := len(self.registry.reservations)) >= self.limits.reservations:
            cause = f"there are {count} reservations, as many as limits.reservations"
            raise Exhausted(_MAKE, wanted.id, cause, "release reservations")
        self._check_devices(wanted)
        made = replace(wanted, created_at_ns=now_ns())
        promise = reservation_promise(self.toolstack, made.memory_bytes, made.vcpus)
        self.ledger.reserve(made.id, promise)
        try:
            self.registry.put_reservation(made)
        except BaseException:
            self.ledger.release_reservation(made.id)
            raise
        checkpoint("reservation-make.recorded")
        log.info("memory reserved", extra=fields(reservation=made.id, bytes=made.memory_bytes))
        return made

    def bind(self, reservation_id: str, pod_uid: str) -> Reservation:
        """Add a pod.  Missing: the id has no reservation.  Exhausted: too many pods."""
        found = self.registry.reservations.get(reservation_id)
        if found is None:
            raise Missing(_BIND, reservation_id, "there is no such reservation", "make it first")
        return self._bound(_BIND, found, (pod_uid,))

    def release(self, reservation_id: str) -> None:
        """Release a reservation; an unknown id succeeds.  A zone with the reservation keeps its memory."""
        if reservation_id not in self.registry.reservations:
            return
        self.registry.drop_reservation(reservation_id)
        checkpoint("reservation-release.recorded")
        self.ledger.release_reservation(reservation_id)
        log.info("reservation released", extra=fields(reservation=reservation_id))

    def _again(self, found: Reservation, wanted: Reservation) -> Reservation:
        if (found.memory_bytes, found.vcpus) != (wanted.memory_bytes, wanted.vcpus):
            cause = (
                f"there is one of {found.memory_bytes} bytes and {found.vcpus} vCPUs,"
                f" asked are {wanted.memory_bytes} and {wanted.vcpus}"
            )
            raise Exists(_MAKE, wanted.id, cause, "release it first")
        if found.devices != wanted.devices:
            have, asked = (", ".join(one.devices) or "none" for one in (found, wanted))
            raise Exists(
                _MAKE, wanted.id, f"it has the devices {have}, asked are {asked}", "release it first"
            )
        return self._bound(_MAKE, found, wanted.pod_uids, wanted.origin)

    def _check_devices(self, wanted: Reservation) -> None:
        for name in wanted.devices:
            configured(self.named_devices, name)
            for other in self.registry.reservations.values():
                if name in other.devices:
                    raise Refused(_MAKE, wanted.id, f"reservation {other.id} has device {name}")
            for zone in self.registry.zones.values():
                has = zone.zone.state is not ZoneState.DEAD and name in [
                    one.name for one in zone.zone.devices
                ]
                if has:
                    raise Refused(_MAKE, wanted.id, f"zone {zone.id} has device {name}")

    def _bound(
        self, operation: str, found: Reservation, pod_uids: tuple[str, ...], origin: str = ""
    ) -> Reservation:
        pods = tuple(dict.fromkeys((*found.pod_uids, *pod_uids)))
        if len(pods) > PODS_LIMIT:
            raise Exhausted(operation, found.id, f"it would be for {len(pods)} pods, more than {PODS_LIMIT}")
        bound = replace(found, pod_uids=pods, origin=found.origin or origin)
        if bound == found:
            return found
        self.registry.put_reservation(bound)
        checkpoint("reservation-bind.recorded")
        return bound
