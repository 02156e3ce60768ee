"""``protect zone resize``: memory, vCPUs and share of CPUs of a running zone."""

from __future__ import annotations

import argparse

from protectctl import daemons, show
from protectctl.command_errors import CommandFailed
from protectctl.usage.values import memory, positive
from xenpod_proto.protect.v1 import protect_pb2 as pb

_TIMEOUT_SECONDS = 120.0
_POLICIES = {"static": pb.MEMORY_POLICY_STATIC, "dynamic": pb.MEMORY_POLICY_DYNAMIC}


def add_arguments(verb: argparse.ArgumentParser, id_help: str) -> None:
    """Add the arguments; missing values stay unchanged."""
    verb.add_argument("id", help=id_help)
    verb.add_argument("--memory", type=memory, default=0, metavar="SIZE", help="such as 512MiB")
    verb.add_argument("--vcpus", type=positive, default=0, metavar="N")
    verb.add_argument("--weight", type=positive, metavar="N", help="share of CPUs: 256 stands for one CPU")
    verb.add_argument(
        "--cap", type=int, metavar="PERCENT", help="most of it, in percent of one CPU; 0: no cap"
    )
    text = "dynamic: memory follows what the zone uses, and --memory is the most of it"
    verb.add_argument("--policy", choices=_POLICIES, help=text)


async def resize(options: argparse.Namespace) -> None:
    """Resize a zone, and show the zone.  CommandFailed, with all impossible parts: nothing was done."""
    resources = pb.ZoneResources(memory_bytes=options.memory, vcpus=options.vcpus)
    for name in ("weight", "cap"):
        if (value := getattr(options, name)) is not None:
            setattr(resources, name, value)
    if options.policy:
        resources.memory_policy = _POLICIES[options.policy]
    async with daemons.zones(options) as zones:
        zone_id = await daemons.zone_id(zones, options.id)
        request = pb.ResizeZoneRequest(id=zone_id, resources=resources)
        answer = await zones.ResizeZone(request, timeout=_TIMEOUT_SECONDS)
    if answer.not_done:
        raise CommandFailed(f"zone {zone_id} stays as it was: {'; '.join(answer.not_done)}")
    show.zone(answer.zone, None, None, options.output)
