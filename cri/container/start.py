"""StartContainer: has protectd start the process, and records the outcome."""

from __future__ import annotations

import logging

from cri.runtime import Runtime
from cri.state.container import ContainerPhase
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete

log = logging.getLogger(__name__)


async def start(runtime: Runtime, wanted: str) -> None:
    """Start a container; Refused if the container was started before."""
    container_id = runtime.containers.find(wanted).id
    async with runtime.locks.hold(container_id):
        container = runtime.containers.get(container_id)
        if container.phase is not ContainerPhase.CREATED:
            raise Refused("start container", container_id, f"it is {container.phase.value}")
        # A cancelled caller must not leave protectd's state and ours different.
        await complete(_start(runtime, container_id))
    log.info("container runs", extra=fields(container=container_id))


async def _start(runtime: Runtime, container_id: str) -> None:
    checkpoint("start-container.asked")
    try:
        workload = await runtime.zones.start_workload(container_id)
    except Fault:
        await _learn(runtime, container_id)
        raise
    await runtime.changes.workload(workload)
    checkpoint("start-container.started")


async def _learn(runtime: Runtime, container_id: str) -> None:
    """Ask protectd about a failed start: the container has ended, or the zone does not answer."""
    try:
        await runtime.changes.workload(await runtime.zones.get_workload(container_id))
    except Fault as fault:
        log.warning("not known how a start failed: %s", fault, extra=fields(container=container_id))
