"""Statistics as values: figures of a zone, its workloads and its interfaces.

Fields have the names of ``channel.v1`` and ``protect.v1``; both explain them, and translation goes by name.
Numbers are in range, and times are near the host's; otherwise the values are claims of the zone.

Tuples are cheaper than dataclasses: a node with many pods makes thousands for each answer.  Plain figures
come first, values with parts last.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class StatsKind(Enum):
    """Extent of a query for statistics, in order of growing cost."""

    WORKLOADS = "workloads"
    ZONE = "zone"
    DETAILS = "details"


class Pressure(NamedTuple):
    """How long work waited for a resource: percent over 10, 60 and 300 s, totals in microseconds."""

    some_avg10: float = 0.0
    some_avg60: float = 0.0
    some_avg300: float = 0.0
    some_total_us: int = 0
    full_avg10: float = 0.0
    full_avg60: float = 0.0
    full_avg300: float = 0.0
    full_total_us: int = 0


class InterfaceStats(NamedTuple):
    """Figures of one network interface of a zone."""

    name: str
    rx_bytes: int = 0
    rx_packets: int = 0
    rx_errors: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0
    tx_errors: int = 0
    rx_dropped: int = 0
    tx_dropped: int = 0


class WorkloadStats(NamedTuple):
    """Figures of one workload; a pressure is None if the kernel does not measure pressures."""

    id: str
    timestamp_ns: int = 0
    cpu_usage_ns: int = 0
    memory_usage_bytes: int = 0
    memory_working_set_bytes: int = 0
    memory_rss_bytes: int = 0
    memory_limit_bytes: int = 0
    page_faults: int = 0
    major_page_faults: int = 0
    swap_usage_bytes: int = 0
    pids_current: int = 0
    writable_layer_bytes: int = 0
    writable_layer_inodes: int = 0
    cpu_user_ns: int = 0
    cpu_system_ns: int = 0
    cpu_periods: int = 0
    cpu_throttled_periods: int = 0
    cpu_throttled_ns: int = 0
    memory_cache_bytes: int = 0
    memory_mapped_file_bytes: int = 0
    writable_layer_limit_bytes: int = 0
    writable_layer_inodes_limit: int = 0
    memory_swap_limit_bytes: int = 0
    oom_kills: int = 0
    memory_max_usage_bytes: int = 0
    memory_kernel_bytes: int = 0
    memory_fail_count: int = 0
    processes: int = 0
    running_processes: int = 0
    file_descriptors: int = 0
    sockets: int = 0
    pids_limit: int = 0
    io_read_bytes: int = 0
    io_write_bytes: int = 0
    io_reads: int = 0
    io_writes: int = 0
    cpu_pressure: Pressure | None = None
    memory_pressure: Pressure | None = None
    io_pressure: Pressure | None = None


class ZoneFigures(NamedTuple):
    """Figures of a zone as a whole."""

    timestamp_ns: int = 0
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    cpu_usage_ns: int = 0
    agent_rss_bytes: int = 0
    memory_usage_bytes: int = 0
    memory_working_set_bytes: int = 0
    memory_rss_bytes: int = 0
    page_faults: int = 0
    major_page_faults: int = 0
    swap_usage_bytes: int = 0
    swap_total_bytes: int = 0
    cpu_pressure: Pressure | None = None
    memory_pressure: Pressure | None = None
    io_pressure: Pressure | None = None
    interfaces: tuple[InterfaceStats, ...] = ()


class ZoneStats(NamedTuple):
    """All statistics of a zone."""

    zone: ZoneFigures
    workloads: tuple[WorkloadStats, ...]


PRESSURES = ("cpu_pressure", "memory_pressure", "io_pressure")


def plain(kind: type[WorkloadStats | ZoneFigures | InterfaceStats | Pressure]) -> tuple[str, ...]:
    """Names of the leading fields (numbers and texts), in order."""
    return tuple(name for name in kind._fields if name not in (*PRESSURES, "interfaces"))
