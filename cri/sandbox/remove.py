"""The end of a pod's record: RemovePodSandbox, and the undo of a pod that never became ready."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.container.remove import remove_by_id as remove_container
from cri.runtime import Runtime
from cri.sandbox.stop import stop_locked, teardown
from cri.state.names import sandbox_name
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.tasks import complete, complete_all

log = logging.getLogger(__name__)


async def remove(runtime: Runtime, wanted: str) -> None:
    """Stop a pod if need be, then forget it and its containers, even if the caller goes away meanwhile.

    Idempotent; an unknown id succeeds.
    """
    found = runtime.sandboxes.find_or_none(wanted)
    if found is None:
        return
    async with runtime.locks.hold(found.id):
        if runtime.sandboxes.has(found.id):
            await complete(_remove(runtime, runtime.sandboxes.get(found.id)))


async def _remove(runtime: Runtime, sandbox: Sandbox) -> None:
    await stop_locked(runtime, sandbox)
    await runtime.sandboxes.put(replace(runtime.sandboxes.get(sandbox.id), phase=SandboxPhase.REMOVING))
    checkpoint("remove-pod.recorded")
    await complete_all([remove_container(runtime, c.id) for c in runtime.containers_of(sandbox.id)])
    checkpoint("remove-pod.containers-removed")
    await runtime.sandboxes.drop(sandbox.id)
    runtime.shares.pop(sandbox.id, None)
    checkpoint("remove-pod.forgotten")
    runtime.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox.id)
    log.info("pod removed", extra=fields(sandbox=sandbox.id))


async def undo(runtime: Runtime, sandbox_id: str) -> bool:
    """Remove a pod that never became ready; returns whether all of it is gone.

    What is not stays recorded, and reconciliation tries again.
    """
    async with runtime.locks.hold(sandbox_id):
        if not runtime.sandboxes.has(sandbox_id):
            return True
        try:
            await _undo(runtime, runtime.sandboxes.get(sandbox_id))
        except Fault as fault:
            runtime.left_over("pod", sandbox_id, fault)
            return False
    return True


async def finish_leftover(runtime: Runtime, name: str) -> None:
    """Finish the removal of a pod that still holds ``name``, since its request has come again."""
    holder = runtime.sandbox_names.holder(name)
    if holder and runtime.sandboxes.phase(holder) is SandboxPhase.UNDOING:
        await undo(runtime, holder)


async def _undo(runtime: Runtime, sandbox: Sandbox) -> None:
    if sandbox.phase is SandboxPhase.CREATING:
        await runtime.sandboxes.note(replace(sandbox, phase=SandboxPhase.UNDOING))
    await teardown(runtime, sandbox)
    checkpoint("undo-pod.torn-down")
    await runtime.sandboxes.drop(sandbox.id)
    runtime.shares.pop(sandbox.id, None)
    checkpoint("undo-pod.forgotten")
    runtime.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox.id)
