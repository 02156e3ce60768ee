"""WaitWorkload."""

from __future__ import annotations

from daemonkit.faults import Missing
from protect.model.workload import Workload
from protect.state.node import Node


async def wait(node: Node, workload_id: str) -> Workload:
    """Once it has ended and its output is in the log; Missing when it is deleted before."""
    runtime = node.workload("wait for workload", workload_id)
    await node.stopping.guard(f"workload {workload_id}", runtime.settled.wait())
    if runtime.gone:
        raise Missing("wait for workload", workload_id, "it was deleted")
    return runtime.workload
