"""CPU figures of CRI resources: values that the kernel's control groups would refuse or clamp."""

from __future__ import annotations

from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

SHARES = range(2, 262_145)
"""cpu.shares: 1024 mean one CPU; values out of bounds are clamped (kernel/sched/sched.h)."""
PERIODS = range(1000, 1_000_001)
"""cpu.cfs_period_us, microseconds (kernel/sched/core.c)."""


def check_cpu(operation: str, asked: cri.LinuxContainerResources) -> None:
    """Invalid for impossible shares or period.  A negative quota means none."""
    if asked.cpu_shares < 0:
        raise Invalid(operation, f"cpu_shares {asked.cpu_shares}", "negative")
    if asked.cpu_period and asked.cpu_period not in PERIODS:
        cause = f"not between {PERIODS[0]} and {PERIODS[-1]} microseconds"
        raise Invalid(operation, f"cpu_period {asked.cpu_period}", cause)


def clamped(cpu_shares: int) -> int:
    """Checked shares, clamped as the kernel does."""
    return min(max(cpu_shares, SHARES[0]), SHARES[-1])
