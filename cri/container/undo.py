"""Takes a container that was never created away again."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.container.remove import remove
from cri.state.container import Phase
from cri.state.node import Node
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)


async def undo(node: Node, container_id: str) -> bool:
    """Whether everything is gone; what is not stays recorded, for ``cri.leftovers`` to try again."""
    if not node.containers.has(container_id):
        return True
    try:
        container = node.containers.get(container_id)
        if container.phase is Phase.CREATING:
            await node.containers.note(replace(container, phase=Phase.UNDOING))
        await remove(node, container_id)
    except Fault as fault:
        log.error("a half-made container is left over: %s", fault, extra=fields(container=container_id))
        node.leftovers.set()
        return False
    return True


async def make_room(node: Node, name: str) -> None:
    """When ``name`` is held by a leftover, finish that first: it is the same request again."""
    holder = node.container_names.holder(name)
    if holder and node.containers.has(holder) and node.containers.get(holder).phase is Phase.UNDOING:
        await undo(node, holder)
