"""The gRPC service protect.v1.Reservations."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc.aio

from daemonkit.faults import Invalid
from daemonkit.rpc.interceptors import read_only
from protect.model import checks
from protect.model.capacity.reservation import Capacity, Reservation
from protect.model.toolstack import Toolstack
from protect.server import device_requests
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.zones.capacity.host_memory import MemorySampler, reservation_promise
from protect.zones.capacity.reservation_book import PODS_LIMIT, ReservationBook
from xenpod_proto.protect.v1 import reservations_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2_grpc

_MOST_MEMORY_BYTES = 1 << 50
_MOST_VCPUS = 1024
_CLAIM = re.compile(r"[a-z0-9./-]{0,320}")

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, eq=False)
class ReservationsServicer(reservations_pb2_grpc.ReservationsServicer):
    """Each method checks the request, calls a verb, and translates the result."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    sampler: MemorySampler
    book: ReservationBook

    async def MakeReservation(self, request: pb.MakeReservationRequest, context: Context) -> pb.Reservation:
        return self._shown(await self.book.make(self._wanted(request)))

    async def BindReservation(self, request: pb.BindReservationRequest, context: Context) -> pb.Reservation:
        operation = "bind reservation"
        reservation_id = checks.identifier(operation, "reservation", request.id)
        pod_uid = checks.identifier(operation, "pod", request.pod_uid)
        return self._shown(self.book.bind(reservation_id, pod_uid))

    async def ReleaseReservation(
        self, request: pb.ReleaseReservationRequest, context: Context
    ) -> pb.ReleaseReservationResponse:
        reservation_id = checks.identifier("release reservation", "reservation", request.id)
        self.book.release(reservation_id)
        return pb.ReleaseReservationResponse()

    @read_only
    async def ListReservations(
        self, request: pb.ListReservationsRequest, context: Context
    ) -> pb.ListReservationsResponse:
        return pb.ListReservationsResponse(
            reservations=[self._shown(one) for one in self.registry.reservations.values()]
        )

    async def WatchCapacity(
        self, request: pb.WatchCapacityRequest, context: Context
    ) -> AsyncIterator[pb.Capacity]:
        await self.sampler.refresh()
        async with aclosing(self.ledger.watch()) as changes:
            async for change in changes:
                yield shown_capacity(change)

    def _wanted(self, request: pb.MakeReservationRequest) -> Reservation:
        """Read a reservation.  Invalid: a field is out of bounds."""
        operation = "make reservation"
        reservation_id = checks.identifier(operation, "reservation", request.id)
        devices = device_requests.names(operation, reservation_id, request.devices)
        size = self._size(operation, reservation_id, request)
        if request.vcpus > _MOST_VCPUS:
            raise Invalid(operation, reservation_id, f"{request.vcpus} vCPUs are more than {_MOST_VCPUS}")
        if (count := len(request.pod_uids)) > PODS_LIMIT:
            raise Invalid(operation, reservation_id, f"{count} pods are more than {PODS_LIMIT}")
        pods = tuple(dict.fromkeys(checks.identifier(operation, "pod", uid) for uid in request.pod_uids))
        origin = checks.identifier(operation, "origin", request.origin) if request.origin else ""
        if not _CLAIM.fullmatch(request.claim):
            raise Invalid(operation, reservation_id, "claim is not up to 320 of [a-z0-9./-]")
        return Reservation(reservation_id, size, request.vcpus, pods, 0, origin, devices, request.claim)

    def _size(self, operation: str, reservation_id: str, request: pb.MakeReservationRequest) -> int:
        """Memory to reserve; 0 only beside devices."""
        if request.memory_bytes and request.total_bytes:
            raise Invalid(operation, reservation_id, "memory_bytes and total_bytes are both set")
        size = request.memory_bytes or request.total_bytes
        if request.devices and not size and not request.vcpus:
            return 0
        if not 0 < size <= _MOST_MEMORY_BYTES:
            raise Invalid(operation, reservation_id, f"{size} bytes are not 1 to {_MOST_MEMORY_BYTES}")
        if request.total_bytes:
            size = self.book.memory_of(reservation_id, size, request.vcpus)
        if not size:
            cause = f"{request.total_bytes} bytes leave nothing beside what the hypervisor takes"
            raise Invalid(operation, reservation_id, cause)
        return size

    def _shown(self, one: Reservation) -> pb.Reservation:
        promise = reservation_promise(self.toolstack, one.memory_bytes, one.vcpus)
        return pb.Reservation(
            id=one.id,
            memory_bytes=one.memory_bytes,
            vcpus=one.vcpus,
            pod_uids=one.pod_uids,
            created_at_ns=one.created_at_ns,
            overhead_bytes=promise - one.memory_bytes,
            zone_id=self.ledger.holder(one.id),
            origin=one.origin,
            devices=one.devices,
            claim=one.claim,
        )


def shown_capacity(value: Capacity) -> pb.Capacity:
    return pb.Capacity(
        total_bytes=value.total,
        reserved_bytes=value.promised,
        free_bytes=value.free,
        reservations_bytes=value.reservations,
        foreign_bytes=value.foreign,
        dom0_bytes=value.dom0,
        sharing_bytes=value.sharing,
        reservation_count=value.reservation_count,
    )
