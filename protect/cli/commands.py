"""The sub-commands: each sends requests to protectd and shows the answers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

import grpc.aio

from daemonkit.grpc_server import channel
from daemonkit.observe.audit import command as audit
from protect.cli import devices, find, generate, images, reservations, resize, show
from protect.cli.errors import CheckFailed, CommandFailed
from protect.cli.host import host
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

_TIMEOUT = 60.0


@contextlib.asynccontextmanager
async def _zones(options: argparse.Namespace) -> AsyncIterator[protect_pb2_grpc.ZonesAsyncStub]:
    async with channel(options.socket) as link:
        yield protect_pb2_grpc.ZonesStub(link)


@contextlib.asynccontextmanager
async def _workloads(options: argparse.Namespace) -> AsyncIterator[protect_pb2_grpc.WorkloadsAsyncStub]:
    async with channel(options.socket) as link:
        yield protect_pb2_grpc.WorkloadsStub(link)


@contextlib.asynccontextmanager
async def _host(options: argparse.Namespace) -> AsyncIterator[protect_pb2_grpc.HostAsyncStub]:
    async with channel(options.socket) as link:
        yield protect_pb2_grpc.HostStub(link)


async def _zone_ids(zones: protect_pb2_grpc.ZonesAsyncStub) -> list[str]:
    answer = await zones.ListZones(pb.ListZonesRequest(), timeout=_TIMEOUT)
    return [zone.id for zone in answer.zones]


async def zone_list(options: argparse.Namespace) -> None:
    async with _zones(options) as zones:
        if options.strangers:
            strangers = await zones.ListStrangers(pb.ListStrangersRequest(), timeout=_TIMEOUT)
            return show.strangers(strangers, options.output)
        show.zones(await zones.ListZones(pb.ListZonesRequest(), timeout=_TIMEOUT), options.output)


async def zone_inspect(options: argparse.Namespace) -> None:
    """Show a zone, and what it says of itself if it answers."""
    async with _zones(options) as zones:
        zone_id = find.one_of(await _zone_ids(zones), options.id, "zone")
        zone = await zones.GetZone(pb.GetZoneRequest(id=zone_id), timeout=_TIMEOUT)
        facts: pb.ZoneFactsResponse | None = None
        stats: pb.ZoneStatsResponse | None = None
        if zone.state == pb.ZONE_STATE_RUNNING:
            try:
                facts = await zones.ZoneFacts(pb.ZoneFactsRequest(id=zone_id), timeout=_TIMEOUT)
                stats = await zones.ZoneStats(pb.ZoneStatsRequest(ids=[zone_id]), timeout=_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                show.note(f"the zone says nothing of itself: {error.details()}")
        show.zone(zone, facts, stats, options.output)


async def zone_console(options: argparse.Namespace) -> None:
    """Show a zone's console, with ``--follow`` until the zone ends."""
    async with _zones(options) as zones:
        zone_id = find.one_of(await _zone_ids(zones), options.id, "zone")
        request = pb.ZoneConsoleRequest(id=zone_id, lines=options.lines, follow=options.follow)
        shown = show.ConsoleText()
        async for piece in zones.ZoneConsole(request, timeout=None if options.follow else _TIMEOUT):
            shown.write(piece.data)
        shown.end()


async def zone_destroy(options: argparse.Namespace) -> None:
    """Destroy zones, once all of them have been found."""
    async with _zones(options) as zones:
        known = await _zone_ids(zones)
        for zone_id in [find.one_of(known, text, "zone") for text in options.ids]:
            await zones.DestroyZone(pb.DestroyZoneRequest(id=zone_id), timeout=_TIMEOUT)


async def workload_list(options: argparse.Namespace) -> None:
    zone_id = options.zone
    if zone_id:
        async with _zones(options) as zones:
            zone_id = find.one_of(await _zone_ids(zones), zone_id, "zone")
    async with _workloads(options) as workloads:
        request = pb.ListWorkloadsRequest(zone_id=zone_id)
        show.workloads(await workloads.ListWorkloads(request, timeout=_TIMEOUT), options.output)


async def workload_inspect(options: argparse.Namespace) -> None:
    async with _workloads(options) as workloads:
        answer = await workloads.ListWorkloads(pb.ListWorkloadsRequest(), timeout=_TIMEOUT)
        workload_id = find.one_of([one.id for one in answer.workloads], options.id, "workload")
        workload = await workloads.GetWorkload(pb.GetWorkloadRequest(id=workload_id), timeout=_TIMEOUT)
        show.workload(workload, options.output)


async def watch(options: argparse.Namespace) -> None:
    """Show events until interrupted, or until protectd ends."""
    async with _host(options) as service:
        async for event in service.Watch(pb.WatchRequest()):
            show.event(event, options.output)


async def zone_adopt(options: argparse.Namespace) -> None:
    """Adopt zones whose records are lost."""
    async with _zones(options) as zones:
        for uuid in await _strangers(zones, options.uuids):
            zone = await zones.AdoptZone(pb.AdoptZoneRequest(uuid=uuid), timeout=_TIMEOUT)
            show.note(f"{uuid} is zone {zone.id} again; what ran in it, and is not known, ends")


async def zone_remove(options: argparse.Namespace) -> None:
    """Remove zones whose records are lost."""
    async with _zones(options) as zones:
        for uuid in await _strangers(zones, options.uuids):
            await zones.RemoveStranger(pb.RemoveStrangerRequest(uuid=uuid), timeout=_TIMEOUT)


async def _strangers(zones: protect_pb2_grpc.ZonesAsyncStub, wanted: Sequence[str]) -> list[str]:
    """The uuids, once all of them have been found."""
    listed = await zones.ListStrangers(pb.ListStrangersRequest(), timeout=_TIMEOUT)
    known = [stranger.uuid for stranger in listed.strangers]
    return [find.one_of(known, text, "stranger") for text in wanted]


async def zone_shutdown(options: argparse.Namespace) -> None:
    """End all zones, in order, for a host that shuts down."""
    async with _zones(options) as zones:
        request = pb.ShutdownZonesRequest(deadline_ns=int(options.deadline * 1e9))
        answer = await zones.ShutdownZones(request, timeout=options.deadline + _TIMEOUT)
    if answer.left:
        raise CommandFailed(f"{len(answer.left)} zones could not be ended: {', '.join(answer.left)}")


async def audit_verify(options: argparse.Namespace) -> None:
    """Check audit logs, which needs no daemon."""
    if not await asyncio.to_thread(audit.run, options):
        raise CheckFailed


COMMANDS: Mapping[str, images.Command] = {
    "zone list": zone_list,
    "zone inspect": zone_inspect,
    "zone console": zone_console,
    "zone destroy": zone_destroy,
    "zone adopt": zone_adopt,
    "zone remove": zone_remove,
    "zone shutdown": zone_shutdown,
    resize.COMMAND: resize.resize,
    "workload list": workload_list,
    "workload inspect": workload_inspect,
    **reservations.COMMANDS,
    "host": host,
    "watch": watch,
    generate.COMMAND: generate.generate,
    audit.COMMAND: audit_verify,
    **devices.COMMANDS,
    **images.COMMANDS,
}
