"""Takes a sandbox that never became ready away again."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.runtime import Runtime
from cri.sandbox.teardown import teardown
from cri.state.names import sandbox_name
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("undo-pod.torn-down", "undo-pod.forgotten")


async def undo(runtime: Runtime, sandbox_id: str) -> bool:
    """Whether everything is gone; what is not stays recorded, for ``cri.reconcile`` to try again."""
    async with runtime.locks.hold(sandbox_id):
        if not runtime.sandboxes.has(sandbox_id):
            return True
        try:
            await _undo(runtime, runtime.sandboxes.get(sandbox_id))
        except Fault as fault:
            log.error("a half-made pod is left over: %s", fault, extra=fields(sandbox=sandbox_id))
            runtime.unfinished.set()
            return False
    return True


async def make_room(runtime: Runtime, name: str) -> None:
    """When ``name`` is held by a leftover, finish that first: it is the same request again."""
    holder = runtime.sandbox_names.holder(name)
    if (
        holder
        and runtime.sandboxes.has(holder)
        and runtime.sandboxes.get(holder).phase is SandboxPhase.UNDOING
    ):
        await undo(runtime, holder)


async def _undo(runtime: Runtime, sandbox: Sandbox) -> None:
    if sandbox.phase is SandboxPhase.CREATING:
        await runtime.sandboxes.note(replace(sandbox, phase=SandboxPhase.UNDOING))
    await teardown(runtime, sandbox)
    checkpoint("undo-pod.torn-down")
    await runtime.sandboxes.drop(sandbox.id)
    checkpoint("undo-pod.forgotten")
    runtime.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox.id)
