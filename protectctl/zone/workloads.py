"""``protect workload``: lists and inspects workloads, runs commands in them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from protectctl import daemons, find, selector, show
from protectctl.command_errors import Command
from protectctl.daemons import TIMEOUT_SECONDS
from protectctl.usage.verbs import ID, add_protectd_verb, verbs_of
from protectctl.zone import execute
from xenpod_proto.protect.v1 import protect_pb2 as pb


def add_arguments(noun: argparse.ArgumentParser) -> None:
    verbs = verbs_of(noun)
    verb = add_protectd_verb(verbs, "workload list", "list workloads")
    verb.add_argument("--zone", default="", metavar="ID", help="only workloads of this zone")
    selector.add_selector(verb, selector.WORKLOAD)
    add_protectd_verb(verbs, "workload inspect", "show a workload").add_argument("id", help=ID)
    execute.add_arguments(add_protectd_verb(verbs, "workload exec", "run a command in a workload"), ID)


async def workload_list(options: argparse.Namespace) -> None:
    zone_id = options.zone
    if zone_id:
        async with daemons.zones(options) as zones:
            zone_id = await daemons.zone_id(zones, zone_id)
    async with daemons.workloads(options) as workloads:
        listed = await daemons.workload_list(workloads, zone_id)
    chosen = options.selector.select(selector.WORKLOAD, listed)
    show.workloads(pb.ListWorkloadsResponse(workloads=chosen), options.output)


async def workload_inspect(options: argparse.Namespace) -> None:
    async with daemons.workloads(options) as workloads:
        known = [one.id for one in await daemons.workload_list(workloads)]
        workload_id = find.one_of(known, options.id, "workload")
        workload = await workloads.GetWorkload(pb.GetWorkloadRequest(id=workload_id), timeout=TIMEOUT_SECONDS)
        show.workload(workload, options.output)


COMMANDS: Mapping[str, Command] = {
    "workload list": workload_list,
    "workload inspect": workload_inspect,
    "workload exec": execute.workload_exec,
}
