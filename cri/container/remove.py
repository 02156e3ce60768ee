"""The end of a container's record: RemoveContainer, and the undo of a container that was never created.

Log files are the caller's.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from cri.container.stop import StopContainer
from cri.ports import Images
from cri.state.changes import StateChanges
from cri.state.container import ContainerPhase
from cri.state.names import container_name
from cri.state.pod_records import PodRecords
from cri.state.sandbox import SandboxPhase
from cri.state.unfinished import Unfinished
from cri.zones.client import Zones
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, TooLate
from daemonkit.logs import fields
from daemonkit.tasks import complete

log = logging.getLogger(__name__)

_ZONE_GONE = frozenset({SandboxPhase.STOPPED, SandboxPhase.REMOVING})


@dataclass(frozen=True, slots=True)
class RemoveContainer:
    """Removes containers, whole or half-made."""

    records: PodRecords
    zones: Zones
    images: Images
    unfinished: Unfinished
    stop_container: StopContainer
    changes: StateChanges

    async def remove(self, wanted: str) -> None:
        """Kill a container if needed, then forget its record.  Idempotent; an unknown id succeeds."""
        if found := self.records.containers.find_or_none(wanted):
            await self.remove_by_id(found.id)

    async def remove_by_id(self, container_id: str) -> None:
        """As remove, by whole id, also for hidden containers; continues if the caller is cancelled."""
        async with self.records.locks.hold(container_id):
            if self.records.containers.has(container_id):
                await complete(self._remove(container_id))

    async def undo(self, container_id: str) -> bool:
        """Remove a container that was never created; returns whether everything is gone.

        Remainders stay recorded, and reconciliation tries again.
        """
        if not self.records.containers.has(container_id):
            return True
        try:
            container = self.records.containers.get(container_id)
            if container.phase is ContainerPhase.CREATING:
                await self.records.containers.note(replace(container, phase=ContainerPhase.UNDOING))
            await self.remove_by_id(container_id)
        except Fault as fault:
            self.unfinished.left_over("container", container_id, fault)
            return False
        return True

    async def finish_leftover(self, name: str) -> None:
        """Finish the removal of a container that still holds ``name``: the kubelet repeats its request."""
        holder = self.records.container_names.holder(name)
        if holder and self.records.containers.phase(holder) is ContainerPhase.UNDOING:
            await self.undo(holder)

    async def _remove(self, container_id: str) -> None:
        await self._end(container_id)
        checkpoint("remove-container.ended")
        container = self.records.containers.get(container_id)
        if not container.hidden:
            await self.records.containers.put(replace(container, phase=ContainerPhase.REMOVING))
        checkpoint("remove-container.recorded")
        # protectd has forgotten the workload with its zone.
        if self.records.sandboxes.get(container.sandbox_id).phase not in _ZONE_GONE:
            await self.zones.delete_workload(container_id)
        checkpoint("remove-container.deleted")
        await self.records.containers.drop(container_id)
        self.images.release(container_id)
        checkpoint("remove-container.forgotten")
        name = container_name(container.config.metadata, container.sandbox_id)
        self.records.container_names.release(name, container_id)
        log.info("container removed", extra=fields(container=container_id))

    async def _end(self, container_id: str) -> None:
        """Kill a running container first: its record, and the event, tell the exit status."""
        container = self.records.containers.get(container_id)
        if container.phase is not ContainerPhase.RUNNING:
            return
        try:
            await self.stop_container.stop(container_id, grace=0)
        except TooLate:
            # StopPodSandbox may have destroyed the zone, with protectd's record of the exit.
            if self.records.sandboxes.get(container.sandbox_id).phase is not SandboxPhase.STOPPING:
                raise
            await self.changes.ended_with_pod(container_id)
