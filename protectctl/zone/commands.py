"""``protect zone``: list, inspect, console, destroy, pause, resume."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from protectctl import daemons, selector, show
from protectctl.daemons import TIMEOUT_SECONDS
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc


async def zone_list(options: argparse.Namespace) -> None:
    async with daemons.zones(options) as zones:
        if options.strangers:
            orphans = await zones.ListStrangers(pb.ListStrangersRequest(), timeout=TIMEOUT_SECONDS)
            return show.orphans(orphans, options.output)
        listed = options.selector.select(selector.ZONE, await daemons.zone_list(zones))
    show.zones(pb.ListZonesResponse(zones=listed), options.output)


async def zone_inspect(options: argparse.Namespace) -> None:
    """Show a zone, with its agent's report if the agent answers."""
    async with daemons.zones(options) as zones:
        zone_id = await daemons.zone_id(zones, options.id)
        zone = await zones.GetZone(pb.GetZoneRequest(id=zone_id), timeout=TIMEOUT_SECONDS)
        facts: pb.ZoneFactsResponse | None = None
        stats: pb.ZoneStatsResponse | None = None
        if zone.state == pb.ZONE_STATE_RUNNING and not zone.paused:
            try:
                facts = await zones.ZoneFacts(pb.ZoneFactsRequest(id=zone_id), timeout=TIMEOUT_SECONDS)
                stats = await zones.ZoneStats(pb.ZoneStatsRequest(ids=[zone_id]), timeout=TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                show.note(f"the zone's agent does not answer: {error.details()}")
        show.zone(zone, facts, stats, options.output)


async def zone_console(options: argparse.Namespace) -> None:
    """Show a zone's console, with ``--follow`` until the zone ends."""
    async with daemons.zones(options) as zones:
        zone_id = await daemons.zone_id(zones, options.id)
        request = pb.ZoneConsoleRequest(id=zone_id, lines=options.lines, follow=options.follow)
        shown = show.ConsoleText()
        async for piece in zones.ZoneConsole(request, timeout=None if options.follow else TIMEOUT_SECONDS):
            shown.write(piece.data)
        shown.end()


async def zone_destroy(options: argparse.Namespace) -> None:
    async with _chosen(options) as (zones, ids):
        for zone_id in ids:
            await zones.DestroyZone(pb.DestroyZoneRequest(id=zone_id), timeout=TIMEOUT_SECONDS)


async def zone_pause(options: argparse.Namespace) -> None:
    async with _chosen(options) as (zones, ids):
        for zone_id in ids:
            await zones.PauseZone(pb.PauseZoneRequest(id=zone_id), timeout=TIMEOUT_SECONDS)


async def zone_resume(options: argparse.Namespace) -> None:
    async with _chosen(options) as (zones, ids):
        for zone_id in ids:
            await zones.ResumeZone(pb.ResumeZoneRequest(id=zone_id), timeout=TIMEOUT_SECONDS)


@asynccontextmanager
async def _chosen(
    options: argparse.Namespace,
) -> AsyncIterator[tuple[protect_pb2_grpc.ZonesAsyncStub, list[str]]]:
    """The ids of the named or selected zones.  All are looked up before any action."""
    if bool(options.ids) is bool(options.selector.terms):
        options.refuse("name zones, or select some with --selector")
    async with daemons.zones(options) as zones:
        known = await daemons.zone_list(zones)
        found = [daemons.one_zone(known, text) for text in options.ids]
        yield zones, found or [one.id for one in options.selector.select(selector.ZONE, known)]
