"""Put numbers into CRI's messages."""

from __future__ import annotations

from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

LARGEST_UINT64 = 2**64 - 1


def value(number: int) -> cri.UInt64Value:
    """A number as a message; sums of the zones' reports may be too large for the field."""
    return cri.UInt64Value(value=min(number, LARGEST_UINT64))


def put_number(field: cri.UInt64Value, number: int) -> None:
    """Set a field of a message, in place: a node with many pods has thousands, and copying costs the most."""
    field.value = min(number, LARGEST_UINT64)


def pressure(target: cri.PsiStats, measured: pb.Pressure) -> None:
    """Put pressure in CRI's format; both sides have totals in microseconds and averages in percent."""
    full, some = target.Full, target.Some
    full.Total, some.Total = measured.full_total_us, measured.some_total_us
    full.Avg10, some.Avg10 = measured.full_avg10, measured.some_avg10
    full.Avg60, some.Avg60 = measured.full_avg60, measured.some_avg60
    full.Avg300, some.Avg300 = measured.full_avg300, measured.some_avg300


def cpu(target: cri.CpuUsage, row: pb.WorkloadStatsRow | pb.ZoneStatsRow, nano_cores: int | None) -> None:
    """Put CPU time; the rate is unset if unknown, and pressure if the zone's kernel has none."""
    target.timestamp = row.timestamp_ns
    put_number(target.usage_core_nano_seconds, row.cpu_usage_ns)
    if nano_cores is not None:
        put_number(target.usage_nano_cores, nano_cores)
    if row.HasField("cpu_pressure"):
        pressure(target.psi, row.cpu_pressure)


def put_memory(target: cri.MemoryUsage, row: pb.WorkloadStatsRow | pb.ZoneStatsRow) -> None:
    """Put memory without the available memory: zones and their workloads report it in different ways."""
    target.timestamp = row.timestamp_ns
    put_number(target.working_set_bytes, row.memory_working_set_bytes)
    put_number(target.usage_bytes, row.memory_usage_bytes)
    put_number(target.rss_bytes, row.memory_rss_bytes)
    put_number(target.page_faults, row.page_faults)
    put_number(target.major_page_faults, row.major_page_faults)
    if row.HasField("memory_pressure"):
        pressure(target.psi, row.memory_pressure)


def io(
    target: cri.LinuxPodSandboxStats | cri.ContainerStats, row: pb.WorkloadStatsRow | pb.ZoneStatsRow
) -> None:
    """Put statistics of I/O; unset if the zone's kernel does not measure I/O."""
    if row.HasField("io_pressure"):
        target.io.timestamp = row.timestamp_ns
        pressure(target.io.psi, row.io_pressure)
