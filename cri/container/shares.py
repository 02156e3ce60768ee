"""A zone's share of the host's CPUs, from CRI's figures for its pod and its containers.

A compromised zone can ignore its own control groups.  The host therefore enforces the sum of their limits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from cri.checks.cpu import clamped
from cri.state.container import ContainerPhase
from cri.state.names import Locks
from cri.state.pod_records import PodRecords
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.state.unfinished import Unfinished
from cri.zones.client import Zones
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)

_CPU_SHARES = 1024
"""CPU shares of one CPU, and the default of a control group."""
_CPU_WEIGHT, _MOST_WEIGHT = 256, 65_535
"""``weight`` of protect.v1: of one CPU, and the maximum."""
_MOST_CAP_PERCENT = 100 * 1024
_PERIOD_MICROSECONDS = 100_000
"""Default period of the kernel, in microseconds."""
_COUNTED = frozenset({ContainerPhase.CREATING, ContainerPhase.CREATED, ContainerPhase.RUNNING})


@dataclass(frozen=True, slots=True)
class ZoneShares:
    """``weight`` and ``cap`` of protect.v1's ZoneResources."""

    weight: int
    cap: int

    def put(self, resources: pb.ZoneResources) -> pb.ZoneResources:
        """Set them in a request."""
        resources.weight, resources.cap = self.weight, self.cap
        return resources


def zone_shares(
    pod: cri.LinuxPodSandboxConfig, containers: Sequence[cri.LinuxContainerResources], cpu_overhead: int
) -> ZoneShares:
    """The share of a zone with these containers; all figures have been checked.

    The pod's own figures count if present, as the kubelet sums them up; else the sum of its containers'
    figures.  A container without a quota may use all vCPUs of its zone: the zone then has no cap.
    ``cpu_overhead``, in percent of one CPU, is added to the cap if the request has no overhead.
    """
    asked, overhead = pod.resources, pod.overhead
    shares = asked.cpu_shares or sum(one.cpu_shares for one in containers)
    percent = cap(asked.cpu_quota, asked.cpu_period)
    if not percent and not asked.cpu_quota:
        percent = sum(cap(one.cpu_quota, one.cpu_period) for one in containers)
    if any(one.cpu_quota <= 0 for one in containers):
        percent = 0
    if percent:
        percent += cap(overhead.cpu_quota, overhead.cpu_period) or cpu_overhead
    return ZoneShares(weight(shares + overhead.cpu_shares if shares else 0), min(percent, _MOST_CAP_PERCENT))


def weight(cpu_shares: int) -> int:
    """1 to 65535 for ``cpu_shares``, 1024 being one CPU; 0, none at all, counts as the kernel's default."""
    shares = clamped(cpu_shares) if cpu_shares else _CPU_SHARES
    return min(max(round(shares * _CPU_WEIGHT / _CPU_SHARES), 1), _MOST_WEIGHT)


def cap(quota: int, period: int) -> int:
    """Percent of one CPU, rounded up, for microseconds in each period; 0, no limit, without a quota."""
    return -(-100 * quota // (period or _PERIOD_MICROSECONDS)) if quota > 0 else 0


class PodShares:
    """Has protectd enforce the shares of all pods.  ``cpu_overhead``: in percent of one CPU."""

    def __init__(self, records: PodRecords, zones: Zones, unfinished: Unfinished, cpu_overhead: int) -> None:
        self._records = records
        self._zones = zones
        self._unfinished = unfinished
        self._cpu_overhead = cpu_overhead
        self._locks = Locks()
        self._sent: dict[str, ZoneShares] = {}
        """By sandbox, the share last sent to protectd."""
        records.sandboxes.observe(self._forget)

    def of(self, sandbox_id: str, pod: cri.LinuxPodSandboxConfig) -> ZoneShares:
        """The share of a pod's zone with its present containers."""
        containers = [
            one.config.linux.resources
            for one in self._records.containers_of(sandbox_id)
            if one.phase in _COUNTED
        ]
        return zone_shares(pod, containers, self._cpu_overhead)

    def sent(self, sandbox_id: str, shares: ZoneShares) -> None:
        """Note the share with which a zone was created."""
        self._sent[sandbox_id] = shares

    async def resize(
        self,
        sandbox_id: str,
        pod: cri.LinuxPodSandboxConfig,
        wanted: pb.ZoneResources,
        *,
        only_more: bool = False,
    ) -> list[str]:
        """Set the zone's size, and the share that follows from ``pod``; returns the failures."""
        async with self._locks.hold(sandbox_id):
            shares = self.of(sandbox_id, pod)
            not_done = await self._zones.resize_zone(sandbox_id, shares.put(wanted), only_more=only_more)
            if not not_done:
                self._sent[sandbox_id] = shares
            return not_done

    async def settle(self, sandbox_id: str) -> None:
        """Have protectd enforce the recorded share, unless unchanged; nothing for a pod without a zone."""
        async with self._locks.hold(sandbox_id):
            if self._records.sandboxes.phase(sandbox_id) is SandboxPhase.READY:
                await complete(self._settle(sandbox_id))

    async def settle_or_log(self, sandbox_id: str) -> None:
        """The same without a caller to tell: a failure is logged, and reconciliation tries again."""
        try:
            await self.settle(sandbox_id)
        except Refused as fault:
            log.info("CPU shares stay: %s", fault, extra=fields(sandbox=sandbox_id))
        except Fault as fault:
            log.warning("CPU shares are not set yet: %s", fault, extra=fields(sandbox=sandbox_id))
            self._unfinished.set()

    async def _settle(self, sandbox_id: str) -> None:
        wanted = self.of(sandbox_id, self._records.sandboxes.get(sandbox_id).config.linux)
        if self._sent.get(sandbox_id) != wanted:
            await self._zones.resize_zone(sandbox_id, wanted.put(pb.ZoneResources()))
            self._sent[sandbox_id] = wanted

    def _forget(self, before: Sandbox | None, after: Sandbox | None) -> None:
        if before is not None and after is None:
            self._sent.pop(before.id, None)
