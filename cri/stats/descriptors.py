"""The metrics: names and labels as in cAdvisor, and the source of each figure.

Source: https://github.com/google/cadvisor/blob/master/docs/storage/prometheus.md, and the conformance suite's
list.  Unknown figures are left out, not reported as 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cri.state.container import Container
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

BASE = ("container", "id", "image", "name", "namespace", "pod")
"""The first labels of every metric."""

Values = Iterator[tuple[tuple[str, ...], int]]
"""(values of the labels after the first, the figure) for each series."""
Reading = Callable[[pb.WorkloadStatsRow, Container], Values]

_SECOND = 10**9
_MICRO = 10**6
_PERIOD = 100_000  # the kernel's own CPU period, microseconds
_SHARES = 1024
_DEVICE = "writable-layer"
GAUGE, COUNTER = cri.GAUGE, cri.COUNTER


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of containers."""

    name: str
    help: str
    kind: cri.MetricType.ValueType
    read: Reading
    labels: tuple[str, ...] = ()


def _field(name: str, divisor: int = 1) -> Reading:
    def read(row: pb.WorkloadStatsRow, container: Container) -> Values:
        yield (), getattr(row, name) // divisor

    return read


def _labelled(label: str, name: str, divisor: int = 1) -> Reading:
    def read(row: pb.WorkloadStatsRow, container: Container) -> Values:
        yield (label,), getattr(row, name) // divisor

    return read


def _device(name: str) -> Reading:
    return _labelled(_DEVICE, name)


def _io(name: str) -> Reading:
    """Figures of I/O, if the zone's kernel counts I/O."""

    def read(row: pb.WorkloadStatsRow, container: Container) -> Values:
        if row.io_reads or row.io_writes:
            yield (_DEVICE,), getattr(row, name)

    return read


def _block_io(row: pb.WorkloadStatsRow, container: Container) -> Values:
    if row.io_reads or row.io_writes:
        yield (_DEVICE, "", "", "Read"), row.io_read_bytes
        yield (_DEVICE, "", "", "Write"), row.io_write_bytes


def _pressure(resource: str, kind: str) -> Reading:
    """Figures of a pressure, if the zone's kernel measures pressure."""

    def read(row: pb.WorkloadStatsRow, container: Container) -> Values:
        if row.HasField(f"{resource}_pressure"):  # type: ignore[arg-type]  # one of three names of this table
            yield (), getattr(getattr(row, f"{resource}_pressure"), f"{kind}_total_us") // _MICRO

    return read


def _resource(name: str, default: int) -> Reading:
    def read(row: pb.WorkloadStatsRow, container: Container) -> Values:
        yield (), max(0, getattr(container.config.linux.resources, name)) or default

    return read


def _quota(row: pb.WorkloadStatsRow, container: Container) -> Values:
    if (quota := container.config.linux.resources.cpu_quota) > 0:
        yield (), quota


def _free(limit: str, used: str) -> Reading:
    def read(row: pb.WorkloadStatsRow, container: Container) -> Values:
        yield (_DEVICE,), max(0, getattr(row, limit) - getattr(row, used))

    return read


def _failures(row: pb.WorkloadStatsRow, container: Container) -> Values:
    yield ("pgfault", "container"), row.page_faults
    yield ("pgmajfault", "container"), row.major_page_faults


def _load(row: pb.WorkloadStatsRow, container: Container) -> Values:
    yield (), row.running_processes * 1000


def _started(row: pb.WorkloadStatsRow, container: Container) -> Values:
    yield (), (container.started_ns or container.created_ns) // _SECOND


def _seen(row: pb.WorkloadStatsRow, container: Container) -> Values:
    yield (), max(0, row.timestamp_ns) // _SECOND


def _open_files(row: pb.WorkloadStatsRow, container: Container) -> Values:
    """The limit of open files of the first process, from its OCI configuration."""
    for limit in json.loads(container.process).get("rlimits", ()):
        if limit["type"] == "RLIMIT_NOFILE":
            yield ("max_open_files",), limit["soft"]


METRICS: tuple[Metric, ...] = (
    Metric("container_cpu_usage_seconds_total", "CPU time used", COUNTER,
           _labelled("total", "cpu_usage_ns", _SECOND), ("cpu",)),
    Metric("container_cpu_user_seconds_total", "CPU time used in user mode", COUNTER,
           _field("cpu_user_ns", _SECOND)),
    Metric("container_cpu_system_seconds_total", "CPU time used in the kernel", COUNTER,
           _field("cpu_system_ns", _SECOND)),
    Metric("container_cpu_cfs_periods_total", "Periods of the CPU quota", COUNTER, _field("cpu_periods")),
    Metric("container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up", COUNTER,
           _field("cpu_throttled_periods")),
    Metric("container_cpu_cfs_throttled_seconds_total", "Time waited because the CPU quota was used up",
           COUNTER, _field("cpu_throttled_ns", _SECOND)),
    Metric("container_cpu_load_average_10s", "Processes that want a CPU just now, times 1000", GAUGE, _load),
    Metric("container_memory_usage_bytes", "Memory in use, whatever for", GAUGE,
           _field("memory_usage_bytes")),
    Metric("container_memory_working_set_bytes", "Memory in use that cannot be dropped at once", GAUGE,
           _field("memory_working_set_bytes")),
    Metric("container_memory_rss", "Anonymous memory", GAUGE, _field("memory_rss_bytes")),
    Metric("container_memory_cache", "Page cache", GAUGE, _field("memory_cache_bytes")),
    Metric("container_memory_mapped_file", "Memory of mapped files", GAUGE,
           _field("memory_mapped_file_bytes")),
    Metric("container_memory_swap", "Swap in use", GAUGE, _field("swap_usage_bytes")),
    Metric("container_memory_kernel_usage", "Memory the kernel uses for it", GAUGE,
           _field("memory_kernel_bytes")),
    Metric("container_memory_max_usage_bytes", "The most memory that was ever in use", GAUGE,
           _field("memory_max_usage_bytes")),
    Metric("container_memory_failcnt", "How often the memory limit was met", COUNTER,
           _field("memory_fail_count")),
    Metric("container_memory_failures_total", "Page faults", COUNTER, _failures, ("failure_type", "scope")),
    Metric("container_oom_events_total", "Processes that the OOM killer ended", COUNTER, _field("oom_kills")),
    Metric("container_fs_usage_bytes", "Bytes written to the root filesystem", GAUGE,
           _device("writable_layer_bytes"), ("device",)),
    Metric("container_fs_limit_bytes", "Bytes that the root filesystem can take", GAUGE,
           _device("writable_layer_limit_bytes"), ("device",)),
    Metric("container_fs_inodes_total", "Inodes that the root filesystem can take", GAUGE,
           _device("writable_layer_inodes_limit"), ("device",)),
    Metric("container_fs_inodes_free", "Inodes left in the root filesystem", GAUGE,
           _free("writable_layer_inodes_limit", "writable_layer_inodes"), ("device",)),
    Metric("container_fs_reads_bytes_total", "Bytes read from disks", COUNTER, _io("io_read_bytes"),
           ("device",)),
    Metric("container_fs_reads_total", "Reads from disks", COUNTER, _io("io_reads"), ("device",)),
    Metric("container_fs_writes_bytes_total", "Bytes written to disks", COUNTER, _io("io_write_bytes"),
           ("device",)),
    Metric("container_fs_writes_total", "Writes to disks", COUNTER, _io("io_writes"), ("device",)),
    Metric("container_blkio_device_usage_total", "Bytes read from and written to disks", COUNTER, _block_io,
           ("device", "major", "minor", "operation")),
    Metric("container_processes", "Processes", GAUGE, _field("processes")),
    Metric("container_threads", "Threads", GAUGE, _field("pids_current")),
    Metric("container_threads_max", "Threads allowed, 0 for any number", GAUGE, _field("pids_limit")),
    Metric("container_file_descriptors", "Open file descriptors", GAUGE, _field("file_descriptors")),
    Metric("container_sockets", "Open sockets", GAUGE, _field("sockets")),
    Metric("container_ulimits_soft", "Soft limits of the first process", GAUGE, _open_files, ("ulimit",)),
    Metric("container_spec_cpu_period", "Period of the CPU quota, microseconds", GAUGE,
           _resource("cpu_period", _PERIOD)),
    Metric("container_spec_cpu_quota", "CPU quota, microseconds in each period", GAUGE, _quota),
    Metric("container_spec_cpu_shares", "Weight of its CPU time", GAUGE, _resource("cpu_shares", _SHARES)),
    Metric("container_spec_memory_limit_bytes", "Memory limit, 0 for none", GAUGE,
           _field("memory_limit_bytes")),
    Metric("container_spec_memory_swap_limit_bytes", "Limit of memory and swap together, 0 for none", GAUGE,
           _field("memory_swap_limit_bytes")),
    Metric("container_start_time_seconds", "When it started, seconds since the epoch", GAUGE, _started),
    Metric("container_last_seen", "When it was last looked at, seconds since the epoch", GAUGE, _seen),
    *(
        Metric(f"container_pressure_{resource}_{name}_seconds_total",
               f"Time in which {who} waited for {resource}", COUNTER, _pressure(resource, kind))
        for resource in ("cpu", "memory", "io")
        for name, kind, who in (("waiting", "some", "some task"), ("stalled", "full", "every task"))
    ),
)  # fmt: skip

NETWORK: tuple[tuple[str, str, str], ...] = (
    ("container_network_receive_bytes_total", "Bytes received", "rx_bytes"),
    ("container_network_receive_packets_total", "Packets received", "rx_packets"),
    ("container_network_receive_errors_total", "Errors while receiving", "rx_errors"),
    ("container_network_receive_packets_dropped_total", "Packets dropped while receiving", "rx_dropped"),
    ("container_network_transmit_bytes_total", "Bytes sent", "tx_bytes"),
    ("container_network_transmit_packets_total", "Packets sent", "tx_packets"),
    ("container_network_transmit_errors_total", "Errors while sending", "tx_errors"),
    ("container_network_transmit_packets_dropped_total", "Packets dropped while sending", "tx_dropped"),
)
"""(name, help, field of pb.InterfaceStats); of the pod, with the label ``interface``."""

POD: tuple[tuple[str, str, int, tuple[str, ...]], ...] = (
    ("container_cpu_usage_seconds_total", "cpu_usage_ns", _SECOND, ("total",)),
    ("container_memory_usage_bytes", "memory_usage_bytes", 1, ()),
    ("container_memory_working_set_bytes", "memory_working_set_bytes", 1, ()),
    ("container_memory_rss", "memory_rss_bytes", 1, ()),
    ("container_memory_swap", "swap_usage_bytes", 1, ()),
)
"""(name, field of pb.ZoneStatsRow, divisor, more label values): the whole zone, with container ""."""

KINDS = {metric.name: metric.kind for metric in METRICS}


def descriptors() -> list[cri.MetricDescriptor]:
    """Descriptors of all metrics of ListPodSandboxMetrics."""
    return [
        *(_descriptor(metric.name, metric.help, metric.labels) for metric in METRICS),
        *(_descriptor(name, text, ("interface",)) for name, text, _ in NETWORK),
    ]


def _descriptor(name: str, text: str, labels: tuple[str, ...]) -> cri.MetricDescriptor:
    return cri.MetricDescriptor(name=name, help=f"{text}.", label_keys=[*BASE, *labels])
