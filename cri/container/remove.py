"""RemoveContainer: ended by force if need be, then forgotten.  Its log file is the caller's."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.state.container import Phase
from cri.state.names import container_name
from cri.state.node import Node
from cri.state.sandbox import Phase as SandboxPhase
from cri.together import to_end
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Missing
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("remove-container.recorded", "remove-container.deleted", "remove-container.forgotten")

_ZONE_GONE = frozenset({SandboxPhase.STOPPED, SandboxPhase.REMOVING})


async def remove_found(node: Node, wanted: str) -> None:
    """Idempotent; an unknown id succeeds."""
    try:
        container_id = node.containers.find(wanted).id
    except Missing:
        return
    await remove(node, container_id)


async def remove(node: Node, container_id: str) -> None:
    """The same by whole id, for hidden ones too."""
    async with node.locks.hold(container_id):
        if node.containers.has(container_id):
            await to_end(_remove(node, container_id))


async def _remove(node: Node, container_id: str) -> None:
    container = node.containers.get(container_id)
    if not container.hidden:
        await node.containers.put(replace(container, phase=Phase.REMOVING))
    checkpoint("remove-container.recorded")
    # With its zone protectd has forgotten it.
    if node.sandboxes.get(container.sandbox_id).phase not in _ZONE_GONE:
        await node.zones.delete_workload(container_id)
    checkpoint("remove-container.deleted")
    await node.containers.drop(container_id)
    node.images.release(container_id)
    checkpoint("remove-container.forgotten")
    node.container_names.release(
        container_name(container.config.metadata, container.sandbox_id), container_id
    )
    log.info("container removed", extra=fields(container=container_id))
