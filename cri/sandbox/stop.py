"""StopPodSandbox: ends a pod's containers, then its zone and its network; records and logs stay."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from cri.container.stop import StopContainer
from cri.ports import PodNetwork
from cri.sandbox.pod_zones import PodZones
from cri.state.changes import StateChanges
from cri.state.container import Container, ContainerPhase
from cri.state.pod_records import PodRecords
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Unreachable
from daemonkit.logs import fields
from daemonkit.tasks import complete, complete_all

log = logging.getLogger(__name__)

_STOPPED = frozenset({SandboxPhase.STOPPED, SandboxPhase.REMOVING})
_UNREACHABLE_SECONDS = 3.0
"""Seconds to wait for an unreachable zone before destroying the zone with its containers."""
_RETRY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class StopSandbox:
    """Stops pods, and tears down their zones and networks."""

    records: PodRecords
    changes: StateChanges
    network: PodNetwork
    zones: PodZones
    stop_container: StopContainer

    async def stop(self, wanted: str) -> None:
        """Stop a pod, even if the caller is cancelled.  Idempotent; an unknown id succeeds."""
        found = self.records.sandboxes.find_or_none(wanted)
        if found is None:
            return
        async with self.records.locks.hold(found.id):
            if self.records.sandboxes.has(found.id):
                await complete(self.stop_locked(self.records.sandboxes.get(found.id)))

    async def stop_locked(self, sandbox: Sandbox) -> None:
        """Stop a pod whose lock the caller holds."""
        if sandbox.phase in _STOPPED:
            return
        await self.records.sandboxes.put(replace(sandbox, phase=SandboxPhase.STOPPING))
        checkpoint("stop-pod.recorded")
        running = [c for c in self.records.containers_of(sandbox.id) if c.phase is ContainerPhase.RUNNING]
        await complete_all([self._end(container) for container in running])
        checkpoint("stop-pod.containers-ended")
        await self.teardown(sandbox)
        checkpoint("stop-pod.torn-down")
        for container in self.records.containers_of(sandbox.id):
            await self.changes.ended_with_pod(container.id)
        await self.records.sandboxes.put(
            replace(self.records.sandboxes.get(sandbox.id), phase=SandboxPhase.STOPPED)
        )
        checkpoint("stop-pod.stopped")
        log.info("pod stopped", extra=fields(sandbox=sandbox.id))

    async def _end(self, container: Container) -> None:
        """Kill a container.  A failure is only logged: the zone is destroyed next, with all its containers.

        An unreachable zone gets a little time to deliver the last output of its containers.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _UNREACHABLE_SECONDS
        while True:
            try:
                return await self.stop_container.kill(container)
            except Fault as fault:
                if not isinstance(fault, Unreachable) or loop.time() >= until:
                    log.warning("not killed before its zone: %s", fault, extra=fields(container=container.id))
                    return
            await asyncio.sleep(_RETRY_SECONDS)

    async def teardown(self, sandbox: Sandbox) -> None:
        """Remove the zone and the network that RunPodSandbox made.  May be repeated.

        Both are tried; the first failure is raised.
        """
        await complete_all([self._destroy_zone(sandbox), self._detach_network(sandbox)])

    async def _destroy_zone(self, sandbox: Sandbox) -> None:
        await self.zones.destroy(sandbox.id)
        checkpoint("teardown.zone-destroyed")

    async def _detach_network(self, sandbox: Sandbox) -> None:
        await self.network.detach(sandbox.attachment)
        checkpoint("teardown.network-detached")
