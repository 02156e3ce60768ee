"""UpdateWorkload."""

from __future__ import annotations

from daemonkit.faults import Refused
from protect.model.workload import WorkloadState
from protect.state.node import Node
from xenpod_proto.channel.v1 import channel_pb2

_UPDATE = "update workload"


async def update(node: Node, workload_id: str, resources: bytes) -> None:
    """Change what it may use of its zone (OCI ``linux.resources``, JSON); Refused once it has ended."""
    runtime = node.workload(_UPDATE, workload_id)
    async with runtime.lock:
        lives = runtime.workload.state in (WorkloadState.CREATED, WorkloadState.RUNNING)
        if not lives or runtime.gone or runtime.deleting or runtime.exit is not None:
            raise Refused(_UPDATE, workload_id, "it has ended")
        link = await runtime.zone.agent()
        message = channel_pb2.UpdateContainer(id=workload_id, resources_json=resources)
        request = channel_pb2.Request(update_container=message)
        await runtime.zone.end.guard(f"zone {runtime.zone.id}", link.call(request, node.config.timeouts.call))
