"""``protect host capacity``: the memory of zones, promised and free."""

from __future__ import annotations

import argparse

from protectctl import daemons, show
from protectctl.command_errors import CommandFailed
from protectctl.output import event
from xenpod_proto.protect.v1 import reservations_pb2 as pb


async def capacity(options: argparse.Namespace) -> None:
    """Show the capacity; with ``--follow`` again after each change, until interrupted."""
    async with daemons.reservations(options) as service:
        async for now in service.WatchCapacity(pb.WatchCapacityRequest()):
            if options.follow:
                event(options.output, now, lambda now=now: _line(now))  # type: ignore[misc]  # bound now
                continue
            return show.capacity(now, options.output)
    if not options.follow:
        raise CommandFailed("protectd says nothing of its capacity")


def _line(now: pb.Capacity) -> str:
    said = f"{show.mib(now.free_bytes)} free of {show.mib(now.total_bytes)}"
    return f"{said}, reservations {show.mib(now.reservations_bytes)}"
