"""SignalWorkload."""

from __future__ import annotations

import signal

from daemonkit.faults import Invalid, Refused
from protect.model.workload import WorkloadState
from protect.state.node import Node
from xenpod_proto.channel.v1 import channel_pb2


async def send(node: Node, workload_id: str, number: int, *, every: bool) -> None:
    """Signal its first process, or every one; Refused when it does not run."""
    if not 0 < number < signal.NSIG:
        raise Invalid("signal workload", workload_id, f"{number} is not a signal")
    runtime = node.workload("signal workload", workload_id)
    if runtime.workload.state is not WorkloadState.RUNNING or runtime.exit is not None:
        raise Refused("signal workload", workload_id, "it does not run")
    link = await runtime.zone.agent()
    message = channel_pb2.SignalProcess(
        process=channel_pb2.ProcessRef(container_id=workload_id), signal=number, all=every
    )
    request = channel_pb2.Request(signal_process=message)
    await runtime.zone.end.guard(f"zone {runtime.zone.id}", link.call(request, node.config.timeouts.call))
