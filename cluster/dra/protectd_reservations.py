"""The client of protectd: reservations, and the host's memory with its changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import grpc.aio

from cluster.dra.model import HostDevice, Promise, ZoneMemory
from cluster.dra.slices.document import Attributes
from daemonkit.faults import Unreachable
from daemonkit.rpc.interceptors import fault_of
from xenpod_proto.protect.v1 import protect_pb2, protect_pb2_grpc
from xenpod_proto.protect.v1 import reservations_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2_grpc as rpc

_CHANGE_SECONDS = 20.0
_READ_SECONDS = 10.0


class ProtectdReservations:
    """Reservations, by the uids of their claims.  All methods raise protectd's faults, or Unreachable."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._reservations = rpc.ReservationsStub(channel)
        self._host = protect_pb2_grpc.HostStub(channel)
        self._devices = protect_pb2_grpc.DevicesStub(channel)

    async def make(self, wanted: Promise) -> None:
        """Make a reservation, or add pods to it.  ``total_bytes`` includes the hypervisor's part."""
        request = pb.MakeReservationRequest(
            id=wanted.claim_uid,
            total_bytes=wanted.total_bytes,
            pod_uids=wanted.pod_uids,
            origin=wanted.device,
            devices=wanted.host_devices,
            claim=wanted.claim,
        )
        with _faults("reserve memory for claim", wanted.claim_uid):
            await self._reservations.MakeReservation(request, timeout=_CHANGE_SECONDS)

    async def release(self, claim_uid: str) -> None:
        """Release a reservation; an unknown claim succeeds."""
        request = pb.ReleaseReservationRequest(id=claim_uid)
        with _faults("release claim", claim_uid):
            await self._reservations.ReleaseReservation(request, timeout=_CHANGE_SECONDS)

    async def all(self) -> tuple[Promise, ...]:
        """All reservations, with and without claims, the oldest first."""
        with _faults("list reservations of", "protectd"):
            answer = await self._reservations.ListReservations(
                pb.ListReservationsRequest(), timeout=_READ_SECONDS
            )
        return tuple(
            Promise(
                one.id,
                one.memory_bytes + one.overhead_bytes,
                tuple(one.pod_uids),
                one.origin,
                tuple(one.devices),
            )
            for one in answer.reservations
        )

    async def devices(self) -> tuple[HostDevice, ...]:
        """The present named devices of the host, sorted by name."""
        with _faults("list devices of", "protectd"):
            answer = await self._devices.ListDevices(protect_pb2.ListDevicesRequest(), timeout=_READ_SECONDS)
        found = {
            one.name: HostDevice(
                one.name,
                one.place if one.kind == protect_pb2.DEVICE_KIND_PCI else "",
                one.readonly,
                one.zone_id,
            )
            for one in answer.devices
            if one.name and one.present
        }
        return tuple(found[name] for name in sorted(found))

    async def attributes(self) -> Attributes:
        """Facts about the host, for selectors of claims."""
        with _faults("ask for the host of", "protectd"):
            host = await self._host.Info(protect_pb2.InfoRequest(), timeout=_READ_SECONDS)
        can = host.capabilities
        found: dict[str, str | int | bool] = {
            "toolstack": host.toolstack,
            "hypervisorVersion": can.hypervisor_version,
            "pv": can.pv,
            "pvh": can.hvm and can.hap,
            "iommu": can.iommu,
            "numaNodes": can.numa_nodes,
        }
        return {name: value for name, value in found.items() if value or isinstance(value, bool)}

    async def watch(self) -> AsyncIterator[ZoneMemory]:
        """The memory for zones now, then after each change; ends with a fault."""
        with _faults("watch capacity of", "protectd"):
            async for capacity in self._reservations.WatchCapacity(pb.WatchCapacityRequest()):
                others = capacity.reserved_bytes - capacity.reservations_bytes
                yield ZoneMemory(
                    total=capacity.total_bytes,
                    claimable=capacity.total_bytes - others,
                    reserved=capacity.reserved_bytes,
                    free=capacity.free_bytes,
                    claimed=capacity.reservations_bytes,
                    claims=capacity.reservation_count,
                )
        raise Unreachable("watch capacity of", "protectd", "it has ended the stream")


@contextmanager
def _faults(operation: str, subject: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise fault_of(error, operation, subject) from error
