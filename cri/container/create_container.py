"""CreateContainer: this daemon writes the OCI configuration, protectd prepares the container in its zone."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from cri.checks.fields import CREATE
from cri.checks.mounts import is_image
from cri.container.container_plan import ContainerPlan, PlanContainer
from cri.container.remove import RemoveContainer
from cri.container.shares import PodShares
from cri.ports import Images
from cri.state.container import ContainerPhase
from cri.state.list_capacity import ListCapacity
from cri.state.names import container_name
from cri.state.pod_records import PodRecords
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.zones.client import Zones
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Refused
from daemonkit.logs import fields
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CreateContainer:
    """Creates containers; a failed creation is undone."""

    records: PodRecords
    capacity: ListCapacity
    images: Images
    zones: Zones
    shares: PodShares
    planner: PlanContainer
    remove_container: RemoveContainer

    async def create(self, asked: cri.CreateContainerRequest) -> str:
        """Create a container; returns its id.  After a failure, reconciliation can remove every remainder."""
        sandbox_id = self.records.sandboxes.find(asked.pod_sandbox_id).id
        await self.images.mend(_image_names(asked.config))
        async with self.records.locks.hold(sandbox_id):
            sandbox = self._ready(sandbox_id)
            plan = await self.planner.plan(sandbox, asked.config)
            await self._make(plan)
        checkpoint("create-container.created")
        container = plan.container
        known = fields(container=container.id, sandbox=sandbox_id, image=container.image.id)
        log.info("container created", extra=known)
        return container.id

    async def _make(self, plan: ContainerPlan) -> None:
        container = plan.container
        name = container_name(container.config.metadata, container.sandbox_id)
        await self.remove_container.finish_leftover(name)
        self.capacity.check_container(CREATE, self.records.namespace_of(container), container.config)
        async with AsyncExitStack() as steps:
            steps.push_async_callback(self.shares.settle_or_log, container.sandbox_id)
            self.records.container_names.reserve(name, container.id)
            steps.push_async_callback(self.remove_container.undo, container.id)
            await self.records.containers.add(container)
            for image_id in container.images:
                self.images.hold(image_id, container.id)
            checkpoint("create-container.recorded")
            await self.shares.settle(container.sandbox_id)
            await self.zones.create_workload(plan.workload)
            checkpoint("create-container.prepared")
            self._ready(container.sandbox_id)
            await self.records.containers.put(replace(container, phase=ContainerPhase.CREATED))
            steps.pop_all()

    def _ready(self, sandbox_id: str) -> Sandbox:
        sandbox = self.records.sandboxes.get(sandbox_id)
        if sandbox.phase is not SandboxPhase.READY:
            cause = f"its pod sandbox {sandbox_id} is {sandbox.phase.value}"
            raise Refused(CREATE, "", f"{cause}: {sandbox.death_reason}" if sandbox.death_reason else cause)
        return sandbox


def _image_names(config: cri.ContainerConfig) -> tuple[str, ...]:
    return (config.image.image, *(mount.image.image for mount in config.mounts if is_image(mount)))
