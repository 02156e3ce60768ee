"""ReopenLog."""

from __future__ import annotations

from daemonkit.faults import Refused
from protect.model.workload import WorkloadState
from protect.state.node import Node


async def reopen(node: Node, workload_id: str) -> None:
    """Go on in a new file of the log's path; Refused once the workload has ended."""
    runtime = node.workload("reopen log", workload_id)
    async with runtime.lock:
        if runtime.workload.state is WorkloadState.EXITED or runtime.outputs is None or runtime.gone:
            raise Refused("reopen log", f"workload {workload_id}", "it does not run")
        await runtime.outputs.log.reopen()
