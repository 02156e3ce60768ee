"""``protect zone create``: creates an empty zone by hand."""

from __future__ import annotations

import argparse
import secrets

from protectctl import daemons
from protectctl.output import structured
from protectctl.usage.values import memory, positive
from xenpod_proto.protect.v1 import protect_pb2 as pb

_TIMEOUT_SECONDS = 3600.0
"""protectd ends a boot after ``timeouts.boot``."""
_MODES = {"pv": pb.ZONE_MODE_PV, "pvh": pb.ZONE_MODE_PVH, "auto": pb.ZONE_MODE_AUTO}


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments.  The profile sets missing values."""
    verb.add_argument("id", nargs="?", default="", help="1 to 64 of [a-z0-9-]; default: a random id")
    verb.add_argument("--name", default="", help="shown in lists")
    verb.add_argument("--hostname", default="", help="default: the zone's own choice")
    verb.add_argument("--profile", default="", help='of protectd.toml; default: "default"')
    verb.add_argument("--memory", type=memory, default=0, metavar="SIZE", help="such as 512MiB")
    verb.add_argument("--vcpus", type=positive, default=0, metavar="N")
    verb.add_argument("--mode", choices=_MODES, help="virtualisation mode")
    text = "scratch disk; 0: none"
    verb.add_argument("--scratch", type=memory, metavar="SIZE", help=text)
    text = "a device of [host.devices] that the zone has from the beginning; may be repeated"
    verb.add_argument("--device", action="append", default=[], metavar="NAME", help=text)
    text = "take the size from the reservations of this pod"
    verb.add_argument("--pod", default="", metavar="UID", help=text)


async def create_zone(options: argparse.Namespace) -> None:
    """Create a zone without network; shows its id after the boot."""
    request = pb.CreateZoneRequest(
        id=options.id or secrets.token_hex(6),
        name=options.name,
        hostname=options.hostname,
        profile=options.profile,
        resources=pb.ZoneResources(memory_bytes=options.memory, vcpus=options.vcpus),
        devices=options.device,
        pod_uid=options.pod,
    )
    if options.mode:
        request.mode = _MODES[options.mode]
    if options.scratch is not None:
        request.scratch_bytes = options.scratch
    async with daemons.zones(options) as zones:
        made = await zones.CreateZone(request, timeout=_TIMEOUT_SECONDS)
    if not structured(options.output, made, names=[made.id]):
        structured("name", names=[made.id])
