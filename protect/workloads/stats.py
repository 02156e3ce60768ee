"""WorkloadStats: one question for each zone, all at once; who does not answer in time is left out."""

from __future__ import annotations

from collections.abc import Sequence

from protect.model.workload import WorkloadState
from protect.state.node import Node, WorkloadRuntime
from protect.zones.answers import Kind
from protect.zones.stats import gather
from xenpod_proto.channel.v1 import channel_pb2

Row = tuple[str, channel_pb2.ContainerStats]
"""(zone id, what it says of one of its workloads): numbers only, its id checked."""


async def stats(node: Node, ids: Sequence[str]) -> list[Row]:
    """Of the given workloads, or of all; only those that run have any."""
    named = [node.workload("stats", one) for one in dict.fromkeys(ids)]
    wanted = {runtime.id: runtime for runtime in named or node.workloads.values() if _lives(runtime)}
    zones = {runtime.zone.id: runtime.zone for runtime in wanted.values()}
    answers = await gather(node, zones.values(), Kind.WORKLOADS)
    return [
        (zone_id, row) for zone_id, answer in answers.items() for row in answer.containers if row.id in wanted
    ]


def _lives(runtime: WorkloadRuntime) -> bool:
    return runtime.workload.state in (WorkloadState.CREATED, WorkloadState.RUNNING)
