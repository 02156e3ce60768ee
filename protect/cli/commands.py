"""The commands: the function of each."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from daemonkit.observe.audit import command as audit
from protect.cli.errors import CheckFailed, Command
from protect.cli.host import capacity, console, devices, doctor, info, overhead, reservations
from protect.cli.image import commands as images
from protect.cli.usage import completion, schema
from protect.cli.usage.arguments import GENERATE
from protect.cli.zone import commands as zones
from protect.cli.zone import create, events, execute, logs, lost, resize, top


async def audit_verify(options: argparse.Namespace) -> None:
    """Check audit logs, which needs no daemon."""
    if not await asyncio.to_thread(audit.run, options):
        raise CheckFailed


async def generate(options: argparse.Namespace) -> None:
    """Make objects for a cluster; imports what that takes."""
    from protect.cli.cluster import generate as generating

    await generating.generate(options)


COMMANDS: Mapping[str, Command] = {
    **zones.COMMANDS,
    **create.COMMANDS,
    resize.COMMAND: resize.resize,
    **execute.COMMANDS,
    **logs.COMMANDS,
    **events.COMMANDS,
    **top.COMMANDS,
    **lost.COMMANDS,
    **reservations.COMMANDS,
    "host": info.host,
    "host info": info.host,
    **capacity.COMMANDS,
    **overhead.COMMANDS,
    **console.COMMANDS,
    GENERATE: generate,
    audit.COMMAND: audit_verify,
    **devices.COMMANDS,
    **images.COMMANDS,
    **doctor.COMMANDS,
    **completion.COMMANDS,
    **schema.COMMANDS,
}
