"""Grows a pod's zone for a container's new limits, before the limits are set.

The kubelet changes the containers of a pod that is resized in place first, and its sandbox last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cri.checks.fields import MAX_MEMORY_BYTES, MAX_VCPUS, memory_limit
from cri.container.shares import PodShares
from cri.state.container import ContainerPhase
from cri.state.pod_records import PodRecords
from daemonkit.faults import Refused
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

_LIVE = frozenset({ContainerPhase.CREATING, ContainerPhase.CREATED, ContainerPhase.RUNNING})


@dataclass(frozen=True, slots=True)
class ZoneGrowth:
    """The room for new limits in a pod's zone.

    ``memory_overhead``: bytes for the zone's kernel if the pod has no overhead.
    """

    records: PodRecords
    shares: PodShares
    memory_overhead: int

    async def grow(self, operation: str, container_id: str, merged: cri.LinuxContainerResources) -> None:
        """Make the zone large enough for a container with these resources.  Refused: the zone cannot grow."""
        container = self.records.containers.get(container_id)
        pod = self.records.sandboxes.get(container.sandbox_id).config.linux
        others = [
            one.config.linux.resources
            for one in self.records.containers_of(container.sandbox_id)
            if one.phase in _LIVE and one.id != container_id
        ]
        now = container.config.linux.resources
        wanted = needed(pod, others, now, merged, self.memory_overhead)
        if wanted.ByteSize():
            not_done = await self.shares.resize(container.sandbox_id, pod, wanted, only_more=True)
            if not_done:
                raise Refused(operation, container_id, "; ".join(not_done))


def needed(
    pod: cri.LinuxPodSandboxConfig,
    others: Sequence[cri.LinuxContainerResources],
    now: cri.LinuxContainerResources,
    then: cri.LinuxContainerResources,
    memory_overhead: int,
) -> pb.ZoneResources:
    """The least size of a zone whose container changes from ``now`` to ``then``; empty if nothing grows.

    All figures have been checked.  The sum of the containers' limits counts, unless the sum exceeded the
    pod's limit already: a container without a limit of its own has the whole limit of its pod.
    """
    wanted = pb.ZoneResources()
    if memory_limit(then) > memory_limit(now) > 0:
        total = _sum(
            memory_limit(pod.resources),
            list(map(memory_limit, others)),
            memory_limit(now),
            memory_limit(then),
        )
        overhead = pod.overhead.memory_limit_in_bytes
        wanted.memory_bytes = min(total + (overhead if overhead > 0 else memory_overhead), MAX_MEMORY_BYTES)
    if milli(then) > milli(now) > 0:
        total = _sum(milli(pod.resources), [milli(one) for one in others], milli(now), milli(then))
        wanted.vcpus = min(-(-total // 1000), MAX_VCPUS)
    return wanted


def _sum(pod: int, others: Sequence[int], now: int, then: int) -> int:
    limited = [one for one in others if one > 0]
    if pod > 0 and sum(limited) + now > pod:
        return max(then, *limited) if limited else then
    return sum(limited) + then


def milli(resources: cri.LinuxContainerResources) -> int:
    """Thousandths of a CPU that a quota allows; 0 without one."""
    if resources.cpu_quota <= 0 or resources.cpu_period <= 0:
        return 0
    return -(-1000 * resources.cpu_quota // resources.cpu_period)
