"""The daemons' services, as commands use them, and the zones that their arguments mean."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Sequence

from daemonkit.grpc_server import channel
from protect.cli import find
from xenpod_proto.cri.v1 import runtime_pb2_grpc
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc, reservations_pb2_grpc

TIMEOUT = 60.0
"""Seconds that a call may take."""


@contextlib.asynccontextmanager
async def zones(options: argparse.Namespace) -> AsyncIterator[protect_pb2_grpc.ZonesAsyncStub]:
    async with channel(options.socket) as link:
        yield protect_pb2_grpc.ZonesStub(link)


@contextlib.asynccontextmanager
async def workloads(options: argparse.Namespace) -> AsyncIterator[protect_pb2_grpc.WorkloadsAsyncStub]:
    async with channel(options.socket) as link:
        yield protect_pb2_grpc.WorkloadsStub(link)


@contextlib.asynccontextmanager
async def host(options: argparse.Namespace) -> AsyncIterator[protect_pb2_grpc.HostAsyncStub]:
    async with channel(options.socket) as link:
        yield protect_pb2_grpc.HostStub(link)


@contextlib.asynccontextmanager
async def reservations(
    options: argparse.Namespace,
) -> AsyncIterator[reservations_pb2_grpc.ReservationsAsyncStub]:
    async with channel(options.socket) as link:
        yield reservations_pb2_grpc.ReservationsStub(link)


@contextlib.asynccontextmanager
async def runtime(options: argparse.Namespace) -> AsyncIterator[runtime_pb2_grpc.RuntimeServiceAsyncStub]:
    """CRI, of xenpod-cri."""
    async with channel(options.cri_socket) as link:
        yield runtime_pb2_grpc.RuntimeServiceStub(link)


async def zone_list(service: protect_pb2_grpc.ZonesAsyncStub) -> Sequence[pb.Zone]:
    return (await service.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT)).zones


async def zone_id(service: protect_pb2_grpc.ZonesAsyncStub, text: str) -> str:
    """The id of the zone that is meant.  CommandFailed: it is ambiguous."""
    return one_zone(await zone_list(service), text)


def one_zone(listed: Sequence[pb.Zone], text: str) -> str:
    """As ``zone_id``, of zones that were listed before."""
    return find.one_of([zone.id for zone in listed], text, "zone", {zone.id: zone.name for zone in listed})


async def workload_list(
    service: protect_pb2_grpc.WorkloadsAsyncStub, zone_id: str = ""
) -> Sequence[pb.Workload]:
    request = pb.ListWorkloadsRequest(zone_id=zone_id)
    return (await service.ListWorkloads(request, timeout=TIMEOUT)).workloads
