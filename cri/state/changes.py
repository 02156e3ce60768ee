"""Applies protectd's reports about zones and workloads to the records of sandboxes and containers.

Replies to calls and the stream of changes both come here, in any order: records only ever go forward.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from cri.state.container import Container, ContainerExit, ContainerPhase
from cri.state.records import Records
from cri.state.sandbox import HAS_ZONE, Sandbox, SandboxPhase
from daemonkit.logs import fields
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)

REASONS = frozenset({"Completed", "Error", "OOMKilled", "StartError", "VolumesLost"})
_ZONE_REASON = re.compile(r"Zone[A-Z][A-Za-z]{1,40}")
"""protectd's name for the kind of death of a container's zone."""
_MESSAGE_LIMIT = 4000
UNKNOWN_EXIT = 255
_KILLED_EXIT = 128 + 9
_MARKED: Mapping[SandboxPhase, SandboxPhase] = {
    SandboxPhase.CREATING: SandboxPhase.CREATING,  # RunPodSandbox checks death_reason before READY
    SandboxPhase.READY: SandboxPhase.DEAD,
}


class StateChanges:
    """Implements ``cri.zones.follow.Changes`` with our records."""

    def __init__(
        self,
        sandboxes: Records[Sandbox],
        containers: Records[Container],
        now: Callable[[], int],
    ) -> None:
        self._sandboxes = sandboxes
        self._containers = containers
        self._now = now

    def known(self) -> tuple[frozenset[str], frozenset[str]]:
        zones = frozenset(s.id for s in self._sandboxes.all() if s.phase in HAS_ZONE)
        return zones, frozenset(c.id for c in self._containers.all() if c.live)

    async def zone(self, zone: pb.Zone) -> None:
        if zone.state == pb.ZONE_STATE_DEAD:
            kind = f"Zone{zone.death_kind or 'Crashed'}"
            await self._ended(zone.id, zone.death_reason or "the zone ended", kind, zone.console)

    async def zone_gone(self, zone_id: str) -> None:
        await self._ended(zone_id, "the zone is gone", "ZoneVanished")

    async def workload(self, workload: pb.Workload) -> None:
        if not self._containers.has(workload.id):
            return
        before = self._containers.get(workload.id)
        after = advanced(before, workload)
        if after is not before:
            await self._containers.note(after)

    async def workload_gone(self, workload_id: str) -> None:
        if not self._containers.has(workload_id):
            return
        container = self._containers.get(workload_id)
        if container.live and not self._stopping(container.sandbox_id):
            await self.lost(workload_id, "Unknown", "protectd does not know it any more")

    async def _ended(self, zone_id: str, reason: str, kind: str, console: str = "") -> None:
        """Note the end of a zone: its sandbox is not ready, and its containers do not run."""
        if not self._sandboxes.has(zone_id) or self._stopping(zone_id):
            return
        message = f"{reason}\n{console}".strip()[:_MESSAGE_LIMIT]
        for container in self._containers.all():
            if container.sandbox_id == zone_id and container.live:
                await self.lost(container.id, kind, message)
        sandbox = self._sandboxes.get(zone_id)
        if sandbox.phase in _MARKED:
            log.warning("a zone ended by itself", extra=fields(sandbox=zone_id, reason=reason))
            await self._sandboxes.note(replace(sandbox, phase=_MARKED[sandbox.phase], death_reason=reason))

    def _stopping(self, sandbox_id: str) -> bool:
        """Whether StopPodSandbox is at work.  If so, StopPodSandbox notes the ends of live containers."""
        return self._sandboxes.get(sandbox_id).phase is SandboxPhase.STOPPING

    async def lost(self, container_id: str, reason: str, message: str, code: int = UNKNOWN_EXIT) -> None:
        """Note that a container has ended in an unknown way, unless its end is known already."""
        if not self._containers.has(container_id):
            return
        container = self._containers.get(container_id)
        if container.live:
            end = ContainerExit(self._now(), code, reason, message)
            await self._containers.note(replace(container, phase=ContainerPhase.EXITED, exit=end))

    async def ended_with_pod(self, container_id: str) -> None:
        """Note that StopPodSandbox ends a container, unless its end is known already."""
        await self.lost(container_id, "Error", "its pod was stopped", _KILLED_EXIT)


def advanced(container: Container, workload: pb.Workload) -> Container:
    """The container after protectd's report; the same object if nothing has changed."""
    if not container.live:
        return container
    if workload.state == pb.WORKLOAD_STATE_RUNNING and container.phase is ContainerPhase.CREATED:
        return replace(container, phase=ContainerPhase.RUNNING, started_ns=workload.started_at_ns)
    if workload.state == pb.WORKLOAD_STATE_EXITED:
        known = workload.reason in REASONS or _ZONE_REASON.fullmatch(workload.reason)
        reason = workload.reason if known else "Unknown"
        code = min(workload.exit_code, 2**31 - 1)
        end = ContainerExit(workload.finished_at_ns, code, reason, workload.message)
        started = workload.started_at_ns or container.started_ns
        return replace(container, phase=ContainerPhase.EXITED, started_ns=started, exit=end)
    return container
