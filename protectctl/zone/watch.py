"""``protect watch``: shows all zones and workloads, then each change."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from protectctl import daemons, show
from protectctl.command_errors import Command
from protectctl.usage.verbs import asks_protectd, named
from xenpod_proto.protect.v1 import protect_pb2 as pb


def add_arguments(noun: argparse.ArgumentParser) -> None:
    asks_protectd(named(noun, "watch"))


async def watch_zones(options: argparse.Namespace) -> None:
    """Show events until interrupted, or until protectd ends."""
    async with daemons.host(options) as service:
        async for event in service.Watch(pb.WatchRequest()):
            show.event(event, options.output)


COMMANDS: Mapping[str, Command] = {"watch": watch_zones}
