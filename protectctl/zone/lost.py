"""Verbs for zones whose records are lost, and for the host's shutdown."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from protectctl import daemons, find, show
from protectctl.command_errors import CommandFailed
from protectctl.daemons import TIMEOUT_SECONDS
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc


async def zone_adopt(options: argparse.Namespace) -> None:
    """Adopt zones whose records are lost."""
    async with daemons.zones(options) as zones:
        for uuid in await _orphans(zones, options.uuids):
            zone = await zones.AdoptZone(pb.AdoptZoneRequest(uuid=uuid), timeout=TIMEOUT_SECONDS)
            show.note(f"{uuid} is zone {zone.id} again; its containers end, since their records are lost")


async def zone_remove(options: argparse.Namespace) -> None:
    """Remove zones whose records are lost."""
    async with daemons.zones(options) as zones:
        for uuid in await _orphans(zones, options.uuids):
            await zones.RemoveStranger(pb.RemoveStrangerRequest(uuid=uuid), timeout=TIMEOUT_SECONDS)


async def _orphans(zones: protect_pb2_grpc.ZonesAsyncStub, wanted: Sequence[str]) -> list[str]:
    """The whole uuids of the wanted orphans; all are looked up before any action."""
    listed = (await zones.ListStrangers(pb.ListStrangersRequest(), timeout=TIMEOUT_SECONDS)).strangers
    known = [orphan.uuid for orphan in listed]
    names = {orphan.uuid: orphan.name for orphan in listed}
    return [find.one_of(known, text, "stranger", names) for text in wanted]


async def zone_shutdown(options: argparse.Namespace) -> None:
    """End all zones in order, for the host's shutdown."""
    async with daemons.zones(options) as zones:
        request = pb.ShutdownZonesRequest(deadline_ns=int(options.deadline * 1e9))
        answer = await zones.ShutdownZones(request, timeout=options.deadline + TIMEOUT_SECONDS)
    if answer.left:
        raise CommandFailed(f"{len(answer.left)} zones could not be ended: {', '.join(answer.left)}")
