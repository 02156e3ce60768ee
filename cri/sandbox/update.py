"""UpdatePodSandboxResources: has protectd resize the zone, and reports the refused changes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from cri.checks.cpu import check_cpu
from cri.checks.fields import memory_limit
from cri.config import CriConfig
from cri.container.shares import PodShares
from cri.container.update import merge
from cri.sandbox.sizing import usual_memory, zone_resources
from cri.state.pod_records import PodRecords
from cri.state.sandbox import SandboxPhase
from cri.zones.follow import HostInfo
from daemonkit.faults import Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)

UPDATE = "update pod sandbox"


@dataclass(frozen=True, slots=True)
class UpdateSandbox:
    """Resizes the zones of pods."""

    records: PodRecords
    shares: PodShares
    host: HostInfo
    config: CriConfig

    async def update(self, asked: cri.UpdatePodSandboxResourcesRequest) -> None:
        """Resize a pod's zone; Refused, with all failures, if the zone stays too small."""
        sandbox_id = self.records.sandboxes.find(asked.pod_sandbox_id).id
        async with self.records.locks.hold(sandbox_id):
            sandbox = self.records.sandboxes.get(sandbox_id)
            if sandbox.phase is not SandboxPhase.READY:
                raise Refused(UPDATE, sandbox_id, f"it is {sandbox.phase.value}")
            config = cri.PodSandboxConfig()
            config.CopyFrom(sandbox.config)
            for figures in (asked.overhead, asked.resources):
                check_cpu(UPDATE, figures)
            merge(config.linux.overhead, asked.overhead)
            merge(config.linux.resources, asked.resources)
            await complete(self._update(sandbox_id, config))

    async def _update(self, sandbox_id: str, config: cri.PodSandboxConfig) -> None:
        sandbox = self.records.sandboxes.get(sandbox_id)
        not_done = []
        if memory_limit(sandbox.config.linux.resources) and not memory_limit(config.linux.resources):
            handler = self.config.handlers[sandbox.handler]
            usual = pb.ZoneResources(memory_bytes=usual_memory(handler, await self.host.info()))
            not_done = await self.shares.resize(sandbox_id, config.linux, usual, only_more=True)
        if not not_done:
            wanted = zone_resources(config, self.config.zone.memory_overhead)
            not_done = await self.shares.resize(sandbox_id, config.linux, wanted)
        if not_done:
            raise Refused(UPDATE, sandbox_id, "; ".join(not_done))
        await self.records.sandboxes.put(replace(self.records.sandboxes.get(sandbox_id), config=config))
        log.info("pod updated", extra=fields(sandbox=sandbox_id))
