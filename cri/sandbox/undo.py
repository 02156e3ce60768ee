"""Takes a sandbox that never became ready away again."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.sandbox.teardown import teardown
from cri.state.names import sandbox_name
from cri.state.node import Node
from cri.state.sandbox import Phase, Sandbox
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("undo-pod.torn-down", "undo-pod.forgotten")


async def undo(node: Node, sandbox_id: str) -> bool:
    """Whether everything is gone; what is not stays recorded, for ``cri.leftovers`` to try again."""
    async with node.locks.hold(sandbox_id):
        if not node.sandboxes.has(sandbox_id):
            return True
        try:
            await _undo(node, node.sandboxes.get(sandbox_id))
        except Fault as fault:
            log.error("a half-made pod is left over: %s", fault, extra=fields(sandbox=sandbox_id))
            node.leftovers.set()
            return False
    return True


async def make_room(node: Node, name: str) -> None:
    """When ``name`` is held by a leftover, finish that first: it is the same request again."""
    holder = node.sandbox_names.holder(name)
    if holder and node.sandboxes.has(holder) and node.sandboxes.get(holder).phase is Phase.UNDOING:
        await undo(node, holder)


async def _undo(node: Node, sandbox: Sandbox) -> None:
    if sandbox.phase is Phase.CREATING:
        await node.sandboxes.note(replace(sandbox, phase=Phase.UNDOING))
    await teardown(node, sandbox)
    checkpoint("undo-pod.torn-down")
    await node.sandboxes.drop(sandbox.id)
    checkpoint("undo-pod.forgotten")
    node.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox.id)
