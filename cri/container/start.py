"""StartContainer: has protectd start the process, and records the outcome."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cri.state.changes import StateChanges
from cri.state.container import ContainerPhase
from cri.state.pod_records import PodRecords
from cri.zones.client import Zones
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Starts created containers."""

    records: PodRecords
    zones: Zones
    changes: StateChanges

    async def start(self, wanted: str) -> None:
        """Start a container; Refused if the container was started before."""
        container_id = self.records.containers.find(wanted).id
        async with self.records.locks.hold(container_id):
            container = self.records.containers.get(container_id)
            if container.phase is not ContainerPhase.CREATED:
                raise Refused("start container", container_id, f"it is {container.phase.value}")
            # A cancelled caller must not leave protectd's state and ours different.
            await complete(self._start(container_id))
        log.info("container runs", extra=fields(container=container_id))

    async def _start(self, container_id: str) -> None:
        checkpoint("start-container.asked")
        try:
            workload = await self.zones.start_workload(container_id)
        except Fault:
            await self._learn(container_id)
            raise
        await self.changes.workload(workload)
        checkpoint("start-container.started")

    async def _learn(self, container_id: str) -> None:
        """Ask protectd about a failed start: the container has ended, or the zone does not answer."""
        try:
            await self.changes.workload(await self.zones.get_workload(container_id))
        except Fault as fault:
            log.warning("not known how a start failed: %s", fault, extra=fields(container=container_id))
