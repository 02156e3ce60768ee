"""Limits of a fake zone, written to its groups in the formats of v1 and v2."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Refused
from protect.model.domain.shares import CPU_PERCENT, CPU_WEIGHT, CpuShares
from protect.toolstack.fake.hierarchies import Hierarchy, read_control, write_control

_MIB = 1 << 20
_PERIOD_US = 100_000
_V1_CPU, _V1_WEIGHTS = 1024, range(2, 262_145)
"""The value for one CPU, and the kernel's allowed range (kernel/sched/sched.h)."""
_V2_CPU, _V2_WEIGHTS = 100, range(1, 10_001)


_VCPUS = "trusted.xenpod.vcpus"
"""An attribute of the zone's group with the number of its vCPUs; the agent reads it (``XENPOD_CPUS``)."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Limits of one zone."""

    memory_bytes: int
    vcpus: int
    pids: int


def limit(hierarchy: Hierarchy, group: Path, limits: CgroupLimits) -> None:
    """Set all limits."""
    if hierarchy.unified:
        write_control(group / "memory.max", str(limits.memory_bytes))
        write_control(group / "pids.max", str(limits.pids))
    if "memory" in hierarchy.controllers:
        write_control(group / "memory.limit_in_bytes", str(limits.memory_bytes))
    if "pids" in hierarchy.controllers:
        write_control(group / "pids.max", str(limits.pids))
    note_vcpus(hierarchy, group, limits.vcpus)
    _cap(hierarchy, group, limits.vcpus * CPU_PERCENT)


def share(hierarchy: Hierarchy, group: Path, vcpus: int, shares: CpuShares) -> None:
    """Set the share of the host's CPUs.  The zone's vCPUs are an upper bound in any case."""
    _cap(hierarchy, group, shares.binding_cap(vcpus) or vcpus * CPU_PERCENT)
    if hierarchy.unified:
        write_control(group / "cpu.weight", str(_scaled(shares.weight, _V2_CPU, _V2_WEIGHTS)))
    if "cpu" in hierarchy.controllers:
        write_control(group / "cpu.shares", str(_scaled(shares.weight, _V1_CPU, _V1_WEIGHTS)))


def _cap(hierarchy: Hierarchy, group: Path, percent: int) -> None:
    quota = _PERIOD_US * percent // CPU_PERCENT
    if hierarchy.unified:
        write_control(group / "cpu.max", f"{quota} {_PERIOD_US}")
    if "cpu" in hierarchy.controllers:
        write_control(group / "cpu.cfs_quota_us", str(quota))


def _scaled(weight: int, cpu: int, allowed: range) -> int:
    """The weight on a scale where ``cpu`` is one CPU."""
    return min(max(round(weight * cpu / CPU_WEIGHT), allowed[0]), allowed[-1])


def note_vcpus(hierarchy: Hierarchy, group: Path, vcpus: int) -> None:
    """Tell the zone its number of vCPUs: its kernel shows the host's CPUs."""
    if hierarchy.unified or "memory" in hierarchy.controllers:
        os.setxattr(group, _VCPUS, str(vcpus).encode())


def set_memory(hierarchy: Hierarchy, group: Path, memory_bytes: int) -> None:
    """Change the limit.  Refused, limit unchanged: more is in use, and cannot be reclaimed."""
    if hierarchy.unified:
        _set_memory_v2(group, memory_bytes)
    elif "memory" in hierarchy.controllers:
        try:
            (group / "memory.limit_in_bytes").write_text(str(memory_bytes))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise _keeps(group, int(read_control(group / "memory.usage_in_bytes") or 0)) from None


def _set_memory_v2(group: Path, memory_bytes: int) -> None:
    """Use memory.high first: it only makes the kernel reclaim, but a lower memory.max kills processes."""
    write_control(group / "memory.high", str(memory_bytes))
    try:
        used = int(read_control(group / "memory.current") or 0)
        if used > memory_bytes:
            raise _keeps(group, used)
        write_control(group / "memory.max", str(memory_bytes))
    finally:
        write_control(group / "memory.high", "max")


def memory_limit(hierarchy: Hierarchy, group: Path) -> int:
    """The zone's memory limit in bytes; 0 if this hierarchy has none, or the group is gone."""
    name = "memory.max" if hierarchy.unified else "memory.limit_in_bytes"
    if not hierarchy.unified and "memory" not in hierarchy.controllers:
        return 0
    text = read_control(group / name).strip()
    return int(text) if text.isdecimal() else 0


def _keeps(group: Path, used: int) -> Refused:
    return Refused("set memory", group.name, f"{-(-used // _MIB)} MiB are in use, and cannot be given back")
