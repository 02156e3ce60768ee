"""Converts numbers into CRI's messages."""

from __future__ import annotations

from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

LARGEST = 2**64 - 1


def value(number: int) -> cri.UInt64Value:
    """A number as a message; sums of what zones report may be too large for the field."""
    return cri.UInt64Value(value=min(number, LARGEST))


def known(number: int | None) -> cri.UInt64Value | None:
    """A number as a message; None, which leaves the field unset, when it is not known."""
    return None if number is None else value(number)


def psi(pressure: pb.Pressure) -> cri.PsiStats:
    """The message of a pressure: totals in microseconds, averages in percent."""
    return cri.PsiStats(
        Full=cri.PsiData(
            Total=pressure.full_total_us,
            Avg10=pressure.full_avg10,
            Avg60=pressure.full_avg60,
            Avg300=pressure.full_avg300,
        ),
        Some=cri.PsiData(
            Total=pressure.some_total_us,
            Avg10=pressure.some_avg10,
            Avg60=pressure.some_avg60,
            Avg300=pressure.some_avg300,
        ),
    )


def cpu_psi(row: pb.WorkloadStatsRow | pb.ZoneStatsRow) -> cri.PsiStats | None:
    return psi(row.cpu_pressure) if row.HasField("cpu_pressure") else None


def memory_psi(row: pb.WorkloadStatsRow | pb.ZoneStatsRow) -> cri.PsiStats | None:
    return psi(row.memory_pressure) if row.HasField("memory_pressure") else None


def io(row: pb.WorkloadStatsRow | pb.ZoneStatsRow) -> cri.IoUsage | None:
    """The message of I/O statistics; None if the zone's kernel does not measure it."""
    if not row.HasField("io_pressure"):
        return None
    return cri.IoUsage(timestamp=row.timestamp_ns, psi=psi(row.io_pressure))
