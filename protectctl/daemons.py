"""The daemons' services for commands, and the look-up of zones from arguments."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import grpc

from daemonkit.rpc.channels import channel
from protectctl import find
from xenpod_proto.cri.v1 import runtime_pb2_grpc
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc, reservations_pb2_grpc

TIMEOUT_SECONDS = 60.0
"""Timeout of a call in seconds."""

Stub = TypeVar("Stub")


def _of_protectd(
    stub: Callable[[grpc.aio.Channel], Stub],
) -> Callable[[argparse.Namespace], AbstractAsyncContextManager[Stub]]:
    @contextlib.asynccontextmanager
    async def service(options: argparse.Namespace) -> AsyncIterator[Stub]:
        async with channel(options.socket) as link:
            yield stub(link)

    return service


zones = _of_protectd(protect_pb2_grpc.ZonesStub)
workloads = _of_protectd(protect_pb2_grpc.WorkloadsStub)
host = _of_protectd(protect_pb2_grpc.HostStub)
reservations = _of_protectd(reservations_pb2_grpc.ReservationsStub)


@contextlib.asynccontextmanager
async def runtime(options: argparse.Namespace) -> AsyncIterator[runtime_pb2_grpc.RuntimeServiceAsyncStub]:
    """CRI's RuntimeService of xenpod-cri."""
    async with channel(options.cri_socket) as link:
        yield runtime_pb2_grpc.RuntimeServiceStub(link)


async def zone_list(service: protect_pb2_grpc.ZonesAsyncStub) -> Sequence[pb.Zone]:
    return (await service.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT_SECONDS)).zones


async def zone_id(service: protect_pb2_grpc.ZonesAsyncStub, text: str) -> str:
    """The id of the zone named by ``text``.  CommandFailed: ambiguous."""
    return one_zone(await zone_list(service), text)


def one_zone(listed: Sequence[pb.Zone], text: str) -> str:
    """Like ``zone_id``, among listed zones."""
    return find.one_of([zone.id for zone in listed], text, "zone", {zone.id: zone.name for zone in listed})


async def workload_list(
    service: protect_pb2_grpc.WorkloadsAsyncStub, zone_id: str = ""
) -> Sequence[pb.Workload]:
    request = pb.ListWorkloadsRequest(zone_id=zone_id)
    return (await service.ListWorkloads(request, timeout=TIMEOUT_SECONDS)).workloads
