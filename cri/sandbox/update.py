"""UpdatePodSandboxResources: has protectd resize the zone, and reports the refused changes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from cri.checks.cpu import check_cpu
from cri.container.shares import PodShares
from cri.container.update import merge
from cri.sandbox.sizing import zone_resources
from cri.state.pod_records import PodRecords
from cri.state.sandbox import SandboxPhase
from daemonkit.faults import Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

UPDATE = "update pod sandbox"


@dataclass(frozen=True, slots=True)
class UpdateSandbox:
    """Resizes the zones of pods.

    ``memory_overhead``: bytes for the zone's kernel if the request has no overhead.
    """

    records: PodRecords
    shares: PodShares
    memory_overhead: int

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
        wanted = zone_resources(config, self.memory_overhead)
        not_done = await self.shares.resize(sandbox_id, config.linux, wanted)
        if not_done:
            raise Refused(UPDATE, sandbox_id, "; ".join(not_done))
        await self.records.sandboxes.put(replace(self.records.sandboxes.get(sandbox_id), config=config))
        log.info("pod updated", extra=fields(sandbox=sandbox_id))
