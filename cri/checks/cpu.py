"""CPU figures of CRI resources: what the kernel's control groups would refuse, and what they would clamp."""

from __future__ import annotations

from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

SHARES = range(2, 262_145)
"""cpu.shares: 1024 stand for one CPU; what is beyond is clamped (kernel/sched/sched.h)."""
PERIODS = range(1000, 1_000_001)
"""cpu.cfs_period_us, microseconds (kernel/sched/core.c)."""


def check_cpu(operation: str, asked: cri.LinuxContainerResources) -> None:
    """Invalid for shares or a period that cannot be.  A negative quota means none."""
    if asked.cpu_shares < 0:
        raise Invalid(operation, f"cpu_shares {asked.cpu_shares}", "negative")
    if asked.cpu_period and asked.cpu_period not in PERIODS:
        cause = f"not between {PERIODS[0]} and {PERIODS[-1]} microseconds"
        raise Invalid(operation, f"cpu_period {asked.cpu_period}", cause)


def clamped(cpu_shares: int) -> int:
    """Shares that have been checked, as the kernel would take them."""
    return min(max(cpu_shares, SHARES[0]), SHARES[-1])
