"""The end of a pod's record: RemovePodSandbox, and the undo of a pod that never became ready."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.checks.fields import RUN
from cri.container.remove import remove_by_id as remove_container
from cri.runtime import Runtime
from cri.sandbox.stop import stop_locked, teardown
from cri.state.names import sandbox_name
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exists, Fault
from daemonkit.logs import fields
from daemonkit.tasks import complete, complete_all
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_WITHOUT_ZONE = frozenset({SandboxPhase.DEAD, SandboxPhase.STOPPED, SandboxPhase.REMOVING})


async def remove(runtime: Runtime, wanted: str) -> None:
    """Stop a pod if needed, then forget the pod and its containers, even if the caller is cancelled.

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
    """Remove a pod that never became ready; returns whether everything is gone.

    Remainders stay recorded, and reconciliation tries again.
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


async def finish_other_attempts(runtime: Runtime, metadata: cri.PodSandboxMetadata) -> None:
    """Finish the undo of all earlier attempts at a pod: the next attempt needs the reservation and devices.

    Waits for a stop in flight.  Exists: an attempt lives.
    """
    for other in _attempts(runtime, metadata):
        if other.phase is SandboxPhase.UNDOING:
            await undo(runtime, other.id)
        elif other.phase is SandboxPhase.STOPPING:
            async with runtime.locks.hold(other.id):
                log.info("the stop of an attempt has ended", extra=fields(sandbox=other.id))
    # Also a sandbox whose undo or stop has failed.
    for other in _attempts(runtime, metadata):
        cause = f"attempt {other.config.metadata.attempt}, sandbox {other.id}, is {other.phase.value}"
        raise Exists(RUN, metadata.name, cause, "stop that one first")


def pod_key(metadata: cri.PodSandboxMetadata) -> str:
    """The name of the lock under which attempts at a pod begin."""
    return f"pod {metadata.namespace}/{metadata.name}/{metadata.uid}"


def _attempts(runtime: Runtime, metadata: cri.PodSandboxMetadata) -> list[Sandbox]:
    """Sandboxes of the pod that may have a zone."""
    return [
        one
        for one in runtime.sandboxes.all()
        if one.phase not in _WITHOUT_ZONE and pod_key(one.config.metadata) == pod_key(metadata)
    ]


async def _undo(runtime: Runtime, sandbox: Sandbox) -> None:
    if sandbox.phase is SandboxPhase.CREATING:
        await runtime.sandboxes.note(replace(sandbox, phase=SandboxPhase.UNDOING))
    await teardown(runtime, sandbox)
    checkpoint("undo-pod.torn-down")
    await runtime.sandboxes.drop(sandbox.id)
    runtime.shares.pop(sandbox.id, None)
    checkpoint("undo-pod.forgotten")
    runtime.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox.id)
