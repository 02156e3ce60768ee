"""A workload found again: after a restart of protectd, or a break of the zone's channel.

Nothing here waits: it runs while the channel's streams are held back.
"""

from __future__ import annotations

import logging

from daemonkit.logs import fields
from protect.model.ports import AgentLink
from protect.model.workload import Exit, Reason, WorkloadState
from protect.state.node import Node, WorkloadRuntime, now_ns
from protect.workloads.create import open_log
from protect.workloads.volumes import release
from xenpod_proto.channel.v1 import channel_pb2

log = logging.getLogger(__name__)

LOST = 255
"""Exit code of a workload its zone knows nothing of any more."""


def adopt(
    node: Node, runtime: WorkloadRuntime, link: AgentLink, untrusted: channel_pb2.Process | None
) -> None:
    """Join its streams again, and believe what its agent says of its state as far as it can be."""
    state = runtime.workload.state
    if runtime.gone or state in (WorkloadState.CREATING, WorkloadState.EXITED):
        # Its streams are not asked for: the link drops them.
        return
    if untrusted is None:
        _lost(node, runtime)
        return
    if runtime.outputs is None:
        open_log(node, runtime).begin(link, runtime.workload.streams)
    began = untrusted.state in (channel_pb2.PROCESS_STATE_RUNNING, channel_pb2.PROCESS_STATE_EXITED)
    if state is WorkloadState.CREATED and began and untrusted.started_at_ns:
        started = min(max(untrusted.started_at_ns, runtime.workload.created_at_ns), now_ns())
        node.note_workload(runtime, runtime.workload.to(WorkloadState.RUNNING, started_at_ns=started))


def _lost(node: Node, runtime: WorkloadRuntime) -> None:
    if runtime.deleting:
        return
    log.error("zone has lost a workload", extra=fields(zone=runtime.zone.id, workload=runtime.id))
    node.tasks.spawn(_release(node, runtime), f"release volumes of {runtime.id}")
    end = Exit(LOST, oom_killed=False, at_ns=now_ns())
    node.note_workload(runtime, runtime.workload.exited(end, Reason.ERROR, "its zone has lost it"))


async def _release(node: Node, runtime: WorkloadRuntime) -> None:
    async with runtime.lock:
        if not runtime.gone:
            await release(node, runtime)
