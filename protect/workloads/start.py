"""StartWorkload."""

from __future__ import annotations

from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Broken, Fault, Refused
from protect.checks import printable
from protect.model.ports import AgentLink
from protect.model.workload import START_FAILED, Exit, Reason, Workload, WorkloadState
from protect.state.node import Node, WorkloadRuntime, now_ns
from protect.tasks import whole
from protect.workloads.volumes import release
from xenpod_proto.channel.v1 import channel_pb2

_MESSAGE = 1024

declare("workload-start.begun", "workload-start.started", "workload-start.running")


async def start(node: Node, workload_id: str) -> Workload:
    """Start it once; Refused when it is not CREATED, Broken when the zone cannot start it.

    No intent is recorded: should we end half-way, the agent says whether it runs.
    """
    runtime = node.workload("start workload", workload_id)
    return await node.tasks.conduct(_conduct(node, runtime), f"start workload {workload_id}")


async def _conduct(node: Node, runtime: WorkloadRuntime) -> Workload:
    async with runtime.lock:
        state = runtime.workload.state
        if state is not WorkloadState.CREATED or runtime.deleting:
            cause = "it is being deleted" if runtime.deleting else f"it is {state.value}, not created"
            raise Refused("start workload", runtime.id, cause)
        link = await runtime.zone.agent()
        checkpoint("workload-start.begun")
        await runtime.zone.end.guard(f"zone {runtime.zone.id}", _to_its_end(node, runtime, link))
        return runtime.workload


async def _to_its_end(node: Node, runtime: WorkloadRuntime, link: AgentLink) -> None:
    """With the note of it: a caller that goes away does not make untrue what the zone has done."""
    await whole(_start(node, runtime, link))


async def _start(node: Node, runtime: WorkloadRuntime, link: AgentLink) -> None:
    request = channel_pb2.Request(start_container=channel_pb2.StartContainer(id=runtime.id))
    try:
        await link.call(request, node.config.timeouts.call)
    except Broken as fault:
        await release(node, runtime)
        _failed(node, runtime, fault)
        raise
    checkpoint("workload-start.started")
    if runtime.workload.state is WorkloadState.CREATED:
        # Else a reconnect in between has told us already.
        node.note_workload(runtime, runtime.workload.to(WorkloadState.RUNNING, started_at_ns=now_ns()))
    checkpoint("workload-start.running")


def _failed(node: Node, runtime: WorkloadRuntime, fault: Fault) -> None:
    end = Exit(START_FAILED, oom_killed=False, at_ns=now_ns())
    message = printable(fault.cause, _MESSAGE)
    node.note_workload(runtime, runtime.workload.exited(end, Reason.START_ERROR, message))
