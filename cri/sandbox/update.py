"""UpdatePodSandboxResources: has protectd resize the zone, and reports the refused changes."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.checks.cpu import check_cpu
from cri.container.shares import resize
from cri.container.update import merge
from cri.runtime import Runtime
from cri.sandbox.sizing import zone_resources
from cri.state.sandbox import SandboxPhase
from daemonkit.faults import Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

UPDATE = "update pod sandbox"


async def update(runtime: Runtime, asked: cri.UpdatePodSandboxResourcesRequest) -> None:
    """Resize a pod's zone; Refused, with all failures, if the zone stays too small."""
    sandbox_id = runtime.sandboxes.find(asked.pod_sandbox_id).id
    async with runtime.locks.hold(sandbox_id):
        sandbox = runtime.sandboxes.get(sandbox_id)
        if sandbox.phase is not SandboxPhase.READY:
            raise Refused(UPDATE, sandbox_id, f"it is {sandbox.phase.value}")
        config = cri.PodSandboxConfig()
        config.CopyFrom(sandbox.config)
        for figures in (asked.overhead, asked.resources):
            check_cpu(UPDATE, figures)
        merge(config.linux.overhead, asked.overhead)
        merge(config.linux.resources, asked.resources)
        await complete(_update(runtime, sandbox_id, config))


async def _update(runtime: Runtime, sandbox_id: str, config: cri.PodSandboxConfig) -> None:
    wanted = zone_resources(config, runtime.config.zone.memory_overhead)
    not_done = await resize(runtime, sandbox_id, config.linux, wanted)
    if not_done:
        raise Refused(UPDATE, sandbox_id, "; ".join(not_done))
    await runtime.sandboxes.put(replace(runtime.sandboxes.get(sandbox_id), config=config))
    log.info("pod updated", extra=fields(sandbox=sandbox_id))
