"""RunPodSandbox: CNI makes the pod's network, protectd boots a zone and connects it to the network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from cri.checks.fields import RUN
from cri.ports import PodNetwork
from cri.sandbox.pod_plan import PlanSandbox
from cri.sandbox.pod_zones import PodZones
from cri.sandbox.remove import RemoveSandbox, pod_key
from cri.state.attachment import Attachment
from cri.state.list_capacity import ListCapacity
from cri.state.names import sandbox_name
from cri.state.pod_records import PodRecords
from cri.state.sandbox import ANONYMOUS_VOLUMES, SMALL_FILES, Sandbox, SandboxPhase
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Refused
from daemonkit.logs import fields
from daemonkit.tasks import gather
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSandbox:
    """Runs pods; a failed start is undone."""

    records: PodRecords
    capacity: ListCapacity
    network: PodNetwork
    zones: PodZones
    planner: PlanSandbox
    remove_sandbox: RemoveSandbox

    async def run(self, asked: cri.RunPodSandboxRequest) -> str:
        """Run a pod; returns its id.  After a failure, reconciliation can remove every remainder."""
        sandbox = self.planner.plan(asked)
        await self.planner.prepare_host_files(sandbox.config)
        name = sandbox_name(sandbox.config.metadata)
        async with AsyncExitStack() as steps:
            self.zones.hold_kernel(sandbox)
            steps.callback(self._release_kernel, sandbox.id)
            await self.planner.check_host(sandbox)
            async with self.records.locks.hold(pod_key(sandbox.config.metadata)):
                await self.remove_sandbox.finish_other_attempts(sandbox.config.metadata)
                self.capacity.check_pod(RUN, sandbox.config)
                self.records.sandbox_names.reserve(name, sandbox.id)
                steps.push_async_callback(self.remove_sandbox.undo, sandbox.id)
                await self.records.sandboxes.add(sandbox)
            checkpoint("run-pod.recorded")
            namespace = asyncio.Event()
            attached, zone = await gather(
                self._attach(sandbox, namespace.set), self.zones.create(sandbox, namespace.wait)
            )
            checkpoint("run-pod.both-made")
            await self.zones.connect(sandbox, attached)
            checkpoint("run-pod.connected")
            await self._ready(sandbox.id, zone)
            steps.pop_all()
        checkpoint("run-pod.ready")
        log.info(
            "pod runs", extra=fields(sandbox=sandbox.id, name=name, addresses=",".join(attached.addresses))
        )
        return sandbox.id

    async def _attach(self, sandbox: Sandbox, made: Callable[[], None]) -> Attachment:
        attached = await self.network.attach(sandbox.attachment, made)
        await self.records.sandboxes.put(replace(self.records.sandboxes.get(sandbox.id), attachment=attached))
        checkpoint("run-pod.network-attached")
        return attached

    async def _ready(self, sandbox_id: str, zone: pb.Zone) -> None:
        """Record that the pod is ready; Refused if the stream of changes has reported the end of its zone."""
        sandbox = self.records.sandboxes.get(sandbox_id)
        if sandbox.death_reason:
            raise Refused(RUN, sandbox_id, f"its zone ended: {sandbox.death_reason}")
        # An older protectd or agent does not know all kinds of volumes.
        in_zone = (
            *sandbox.in_zone,
            *([SMALL_FILES] if zone.file_volumes else []),
            *([ANONYMOUS_VOLUMES] if zone.anonymous_volumes else []),
        )
        await self.records.sandboxes.put(replace(sandbox, phase=SandboxPhase.READY, in_zone=in_zone))

    def _release_kernel(self, sandbox_id: str) -> None:
        """Release the kernel image, unless the pod is recorded: its zone may still boot from the image."""
        if not self.records.sandboxes.has(sandbox_id):
            self.zones.release_kernel(sandbox_id)
