"""The end of a container's record: RemoveContainer, and the undo of a container that was never created.

Log files are the caller's.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.runtime import Runtime
from cri.state.container import ContainerPhase
from cri.state.names import container_name
from cri.state.sandbox import SandboxPhase
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.tasks import complete

log = logging.getLogger(__name__)

_ZONE_GONE = frozenset({SandboxPhase.STOPPED, SandboxPhase.REMOVING})


async def remove(runtime: Runtime, wanted: str) -> None:
    """Kill a container if needed, then forget its record.  Idempotent; an unknown id succeeds."""
    if found := runtime.containers.find_or_none(wanted):
        await remove_by_id(runtime, found.id)


async def remove_by_id(runtime: Runtime, container_id: str) -> None:
    """As remove, by whole id, also for hidden containers; continues if the caller is cancelled."""
    async with runtime.locks.hold(container_id):
        if runtime.containers.has(container_id):
            await complete(_remove(runtime, container_id))


async def undo(runtime: Runtime, container_id: str) -> bool:
    """Remove a container that was never created; returns whether everything is gone.

    Remainders stay recorded, and reconciliation tries again.
    """
    if not runtime.containers.has(container_id):
        return True
    try:
        container = runtime.containers.get(container_id)
        if container.phase is ContainerPhase.CREATING:
            await runtime.containers.note(replace(container, phase=ContainerPhase.UNDOING))
        await remove_by_id(runtime, container_id)
    except Fault as fault:
        runtime.left_over("container", container_id, fault)
        return False
    return True


async def finish_leftover(runtime: Runtime, name: str) -> None:
    """Finish the removal of a container that still holds ``name``: the kubelet has repeated its request."""
    holder = runtime.container_names.holder(name)
    if holder and runtime.containers.phase(holder) is ContainerPhase.UNDOING:
        await undo(runtime, holder)


async def _remove(runtime: Runtime, container_id: str) -> None:
    container = runtime.containers.get(container_id)
    if not container.hidden:
        await runtime.containers.put(replace(container, phase=ContainerPhase.REMOVING))
    checkpoint("remove-container.recorded")
    # protectd has forgotten the workload with its zone.
    if runtime.sandboxes.get(container.sandbox_id).phase not in _ZONE_GONE:
        await runtime.zones.delete_workload(container_id)
    checkpoint("remove-container.deleted")
    await runtime.containers.drop(container_id)
    runtime.images.release(container_id)
    checkpoint("remove-container.forgotten")
    name = container_name(container.config.metadata, container.sandbox_id)
    runtime.container_names.release(name, container_id)
    log.info("container removed", extra=fields(container=container_id))
