"""StartContainer."""

from __future__ import annotations

import logging

from cri.state.container import Phase
from cri.state.node import Node
from cri.together import to_end
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("start-container.asked", "start-container.started")


async def start(node: Node, wanted: str) -> None:
    """Refused when it is not merely created."""
    container_id = node.containers.find(wanted).id
    async with node.locks.hold(container_id):
        container = node.containers.get(container_id)
        if container.phase is not Phase.CREATED:
            raise Refused("start container", container_id, f"it is {container.phase.value}")
        # protectd's state is the truth; a caller that goes away does not stop a start half-way
        await to_end(_start(node, container_id))
    log.info("container runs", extra=fields(container=container_id))


async def _start(node: Node, container_id: str) -> None:
    checkpoint("start-container.asked")
    try:
        workload = await node.zones.start_workload(container_id)
    except Fault:
        await _learn(node, container_id)
        raise
    await node.changes.workload(workload)
    checkpoint("start-container.started")


async def _learn(node: Node, container_id: str) -> None:
    """A failed start has ended the container, or the zone is silent: what protectd says of it."""
    try:
        await node.changes.workload(await node.zones.get_workload(container_id))
    except Fault as fault:
        log.warning("not known how a start failed: %s", fault, extra=fields(container=container_id))
