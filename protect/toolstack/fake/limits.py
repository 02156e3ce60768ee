"""What a fake zone may use, written to its groups; v1 and v2 say the same in words of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protect.model.shares import CPU_PERCENT, CPU_WEIGHT, CpuShares
from protect.toolstack.fake.hierarchies import Hierarchy, write

_PERIOD_US = 100_000
_V1_CPU, _V1_WEIGHTS = 1024, range(2, 262_145)
"""What stands for one CPU, and what the kernel takes (kernel/sched/sched.h)."""
_V2_CPU, _V2_WEIGHTS = 100, range(1, 10_001)


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """What one zone may use."""

    memory_bytes: int
    vcpus: int
    pids: int


def limit(hierarchy: Hierarchy, group: Path, limits: CgroupLimits) -> None:
    """Set all of them."""
    if hierarchy.unified:
        write(group / "memory.max", str(limits.memory_bytes))
        write(group / "pids.max", str(limits.pids))
    if "memory" in hierarchy.controllers:
        write(group / "memory.limit_in_bytes", str(limits.memory_bytes))
    if "pids" in hierarchy.controllers:
        write(group / "pids.max", str(limits.pids))
    _cap(hierarchy, group, limits.vcpus * CPU_PERCENT)


def share(hierarchy: Hierarchy, group: Path, vcpus: int, shares: CpuShares) -> None:
    """Set the share of the host's CPUs of a zone of so many vCPUs, which bound it anyway."""
    _cap(hierarchy, group, shares.binding_cap(vcpus) or vcpus * CPU_PERCENT)
    if hierarchy.unified:
        write(group / "cpu.weight", str(_scaled(shares.weight, _V2_CPU, _V2_WEIGHTS)))
    if "cpu" in hierarchy.controllers:
        write(group / "cpu.shares", str(_scaled(shares.weight, _V1_CPU, _V1_WEIGHTS)))


def _cap(hierarchy: Hierarchy, group: Path, percent: int) -> None:
    quota = _PERIOD_US * percent // CPU_PERCENT
    if hierarchy.unified:
        write(group / "cpu.max", f"{quota} {_PERIOD_US}")
    if "cpu" in hierarchy.controllers:
        write(group / "cpu.cfs_quota_us", str(quota))


def _scaled(weight: int, cpu: int, allowed: range) -> int:
    """The weight where ``cpu`` stands for one CPU."""
    return min(max(round(weight * cpu / CPU_WEIGHT), allowed[0]), allowed[-1])
