"""Takes a sandbox that never became ready away again."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.names import sandbox_name
from cri.node import Node
from cri.sandbox.record import Phase
from cri.sandbox.teardown import teardown
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("undo-pod.torn-down", "undo-pod.forgotten")


async def undo(node: Node, sandbox_id: str) -> bool:
    """Whether everything is gone; what is not stays recorded, for ``cri.leftovers`` to try again."""
    try:
        sandbox = node.sandboxes.get(sandbox_id)
        if sandbox.phase is Phase.CREATING:
            await node.sandboxes.note(replace(sandbox, phase=Phase.UNDOING))
        await teardown(node, sandbox)
        checkpoint("undo-pod.torn-down")
        await node.sandboxes.drop(sandbox_id)
        checkpoint("undo-pod.forgotten")
    except Fault as fault:
        log.error("a half-made pod is left over: %s", fault, extra=fields(sandbox=sandbox_id))
        node.leftovers.set()
        return False
    node.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox_id)
    return True
