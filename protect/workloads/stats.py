"""WorkloadStats: one question for each zone, all at once; who does not answer in time is left out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.node import Node, WorkloadRuntime, ZoneRuntime
from protect.workloads.values import WorkloadState
from xenpod_proto.channel.v1 import channel_pb2

log = logging.getLogger(__name__)

Row = tuple[str, channel_pb2.ContainerStats]
"""(zone id, what it says of one of its workloads): numbers only, its id checked."""


async def stats(node: Node, ids: Sequence[str]) -> list[Row]:
    """Of the given workloads, or of all; only those that run have any."""
    wanted = [node.workload("stats", one) for one in dict.fromkeys(ids)] if ids else node.workloads.values()
    by_zone: dict[str, list[str]] = {}
    for runtime in wanted:
        if _has_stats(runtime):
            by_zone.setdefault(runtime.zone.id, []).append(runtime.id)
    answers = await asyncio.gather(*(_ask(node, node.zones[zone], ids) for zone, ids in by_zone.items()))
    return [row for answer in answers for row in answer]


def _has_stats(runtime: WorkloadRuntime) -> bool:
    running = runtime.workload.state in (WorkloadState.CREATED, WorkloadState.RUNNING)
    return running and not runtime.zone.end and runtime.zone.connected


async def _ask(node: Node, zone: ZoneRuntime, ids: list[str]) -> list[Row]:
    request = channel_pb2.Request(get_stats=channel_pb2.GetStats(container_ids=ids))
    try:
        link = await zone.agent()
        reply = await zone.end.guard(f"zone {zone.id}", link.call(request, node.config.timeouts.stats))
    except Fault as fault:
        log.warning("zone gives no stats: %s", fault, extra=fields(zone=zone.id))
        return []
    asked = set(ids)
    rows: list[Row] = []
    for untrusted in reply.stats.containers:
        if untrusted.id in asked:
            asked.discard(untrusted.id)
            rows.append((zone.id, untrusted))
    return rows
