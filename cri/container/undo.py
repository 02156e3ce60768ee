"""Takes a container that was never created away again."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.container.remove import remove
from cri.runtime import Runtime
from cri.state.container import ContainerPhase
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)


async def undo(runtime: Runtime, container_id: str) -> bool:
    """Whether everything is gone; what is not stays recorded, for ``cri.reconcile`` to try again."""
    if not runtime.containers.has(container_id):
        return True
    try:
        container = runtime.containers.get(container_id)
        if container.phase is ContainerPhase.CREATING:
            await runtime.containers.note(replace(container, phase=ContainerPhase.UNDOING))
        await remove(runtime, container_id)
    except Fault as fault:
        log.error("a half-made container is left over: %s", fault, extra=fields(container=container_id))
        runtime.unfinished.set()
        return False
    return True


async def make_room(runtime: Runtime, name: str) -> None:
    """When ``name`` is held by a leftover, finish that first: it is the same request again."""
    holder = runtime.container_names.holder(name)
    if (
        holder
        and runtime.containers.has(holder)
        and runtime.containers.get(holder).phase is ContainerPhase.UNDOING
    ):
        await undo(runtime, holder)
