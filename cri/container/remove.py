"""RemoveContainer: ended by force if need be, then forgotten.  Its log file is the caller's."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.runtime import Runtime
from cri.state.container import ContainerPhase
from cri.state.names import container_name
from cri.state.sandbox import SandboxPhase
from cri.together import to_end
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Missing
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("remove-container.recorded", "remove-container.deleted", "remove-container.forgotten")

_ZONE_GONE = frozenset({SandboxPhase.STOPPED, SandboxPhase.REMOVING})


async def remove_found(runtime: Runtime, wanted: str) -> None:
    """Idempotent; an unknown id succeeds."""
    try:
        container_id = runtime.containers.find(wanted).id
    except Missing:
        return
    await remove(runtime, container_id)


async def remove(runtime: Runtime, container_id: str) -> None:
    """The same by whole id, for hidden ones too."""
    async with runtime.locks.hold(container_id):
        if runtime.containers.has(container_id):
            await to_end(_remove(runtime, container_id))


async def _remove(runtime: Runtime, container_id: str) -> None:
    container = runtime.containers.get(container_id)
    if not container.hidden:
        await runtime.containers.put(replace(container, phase=ContainerPhase.REMOVING))
    checkpoint("remove-container.recorded")
    # With its zone protectd has forgotten it.
    if runtime.sandboxes.get(container.sandbox_id).phase not in _ZONE_GONE:
        await runtime.zones.delete_workload(container_id)
    checkpoint("remove-container.deleted")
    await runtime.containers.drop(container_id)
    runtime.images.release(container_id)
    checkpoint("remove-container.forgotten")
    runtime.container_names.release(
        container_name(container.config.metadata, container.sandbox_id), container_id
    )
    log.info("container removed", extra=fields(container=container_id))
