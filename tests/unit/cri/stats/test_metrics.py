"""The figure, source and unit of every metric."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cri.config import ContainerDefaults
from tests.support.cri.cri_node import Rig, node_config, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

SECOND = 10**9
DEVICE = "writable-layer"
ROW = pb.WorkloadStatsRow(
    cpu_usage_ns=17 * SECOND // 2, cpu_user_ns=5 * SECOND, cpu_system_ns=3 * SECOND,
    cpu_periods=101, cpu_throttled_periods=102, cpu_throttled_ns=4 * SECOND,
    memory_usage_bytes=103, memory_working_set_bytes=104, memory_rss_bytes=105, memory_cache_bytes=106,
    memory_mapped_file_bytes=107, swap_usage_bytes=108, memory_kernel_bytes=109, memory_max_usage_bytes=110,
    memory_fail_count=111, page_faults=112, major_page_faults=113, oom_kills=114,
    writable_layer_bytes=115, writable_layer_limit_bytes=116, writable_layer_inodes=17,
    writable_layer_inodes_limit=118, io_read_bytes=119, io_reads=120, io_write_bytes=121, io_writes=122,
    processes=123, pids_current=124, pids_limit=125, running_processes=3, file_descriptors=126, sockets=127,
    memory_limit_bytes=128, memory_swap_limit_bytes=129,
    cpu_pressure=pb.Pressure(some_total_us=11_900_000, full_total_us=12_000_000),
    memory_pressure=pb.Pressure(some_total_us=13_000_000, full_total_us=14_000_000),
    io_pressure=pb.Pressure(some_total_us=15_000_000, full_total_us=16_000_000),
)  # fmt: skip
FIGURES = {
    ("cpu_usage_seconds_total", "total"): 8,
    ("cpu_user_seconds_total",): 5,
    ("cpu_system_seconds_total",): 3,
    ("cpu_cfs_periods_total",): 101,
    ("cpu_cfs_throttled_periods_total",): 102,
    ("cpu_cfs_throttled_seconds_total",): 4,
    ("cpu_load_average_10s",): 3000,
    ("memory_usage_bytes",): 103,
    ("memory_working_set_bytes",): 104,
    ("memory_rss",): 105,
    ("memory_cache",): 106,
    ("memory_mapped_file",): 107,
    ("memory_swap",): 108,
    ("memory_kernel_usage",): 109,
    ("memory_max_usage_bytes",): 110,
    ("memory_failcnt",): 111,
    ("memory_failures_total", "pgfault", "container"): 112,
    ("memory_failures_total", "pgmajfault", "container"): 113,
    ("oom_events_total",): 114,
    ("fs_usage_bytes", DEVICE): 115,
    ("fs_limit_bytes", DEVICE): 116,
    ("fs_inodes_total", DEVICE): 118,
    ("fs_inodes_free", DEVICE): 101,
    ("fs_reads_bytes_total", DEVICE): 119,
    ("fs_reads_total", DEVICE): 120,
    ("fs_writes_bytes_total", DEVICE): 121,
    ("fs_writes_total", DEVICE): 122,
    ("blkio_device_usage_total", DEVICE, "", "", "Read"): 119,
    ("blkio_device_usage_total", DEVICE, "", "", "Write"): 121,
    ("processes",): 123,
    ("threads",): 124,
    ("threads_max",): 125,
    ("file_descriptors",): 126,
    ("sockets",): 127,
    ("ulimits_soft", "max_open_files"): 4242,
    ("spec_cpu_period",): 50_000,
    ("spec_cpu_quota",): 20_000,
    ("spec_cpu_shares",): 512,
    ("spec_memory_limit_bytes",): 128,
    ("spec_memory_swap_limit_bytes",): 129,
    ("pressure_cpu_waiting_seconds_total",): 11,
    ("pressure_cpu_stalled_seconds_total",): 12,
    ("pressure_memory_waiting_seconds_total",): 13,
    ("pressure_memory_stalled_seconds_total",): 14,
    ("pressure_io_waiting_seconds_total",): 15,
    ("pressure_io_stalled_seconds_total",): 16,
}
TIMES = {("start_time_seconds",), ("last_seen",)}
NETWORK = pb.InterfaceStats(
    name="eth0", rx_bytes=1, rx_packets=2, rx_errors=3, rx_dropped=4,
    tx_bytes=5, tx_packets=6, tx_errors=7, tx_dropped=8,
)  # fmt: skip


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    defaults = ContainerDefaults(nofile=4242)
    async with rig(tmp_path, config=replace(node_config(tmp_path), container=defaults)) as made:
        yield made


async def found(node: Rig) -> cri.PodSandboxMetrics:
    (one,) = (await node.cri.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest())).pod_metrics
    return one  # type: ignore[no-any-return]


def figures(metrics: Any, labels: int = 6) -> dict[tuple[str, ...], int]:
    """The figures by the end of the metric's name, and by the labels after the common ones."""
    return {
        (one.name.removeprefix("container_"), *one.label_values[labels:]): one.value.value for one in metrics
    }


async def test_each_figure_of_a_container_has_its_source(node: Rig) -> None:
    node.protect.workload_stats = ROW
    asked = cri.LinuxContainerResources(cpu_quota=20_000, cpu_period=50_000, cpu_shares=512)
    before = int(time.time())
    await node.started(await node.pod(), linux=cri.LinuxContainerConfig(resources=asked))
    (own,) = (await found(node)).container_metrics
    every = figures(own.metrics)
    times = {name: every.pop(name) for name in TIMES}
    assert every == FIGURES
    assert all(before <= figure <= time.time() for figure in times.values())
    gauges = {one.name for one in own.metrics if one.metric_type == cri.GAUGE}
    assert not [name for name in gauges if name.endswith("_total") and "inodes" not in name]
    assert {"container_processes", "container_memory_rss", "container_last_seen"} <= gauges


async def test_container_without_requests_has_default_figures(node: Rig) -> None:
    """No quota; counters of disks only where the zone's kernel counts; nothing below zero."""
    node.protect.workload_stats = pb.WorkloadStatsRow(writable_layer_inodes=5, writable_layer_inodes_limit=4)
    asked = cri.LinuxContainerResources(cpu_quota=-1)
    await node.started(await node.pod(), linux=cri.LinuxContainerConfig(resources=asked))
    every = figures((await found(node)).container_metrics[0].metrics)
    assert every["spec_cpu_period",] == 100_000 and every["spec_cpu_shares",] == 1024
    assert every["fs_inodes_free", DEVICE] == 0
    left_out = ("quota", "pressure", "fs_reads", "fs_writes", "blkio")
    assert not [name for name, *_ in every if any(part in name for part in left_out)]


@pytest.mark.parametrize("counted", ["io_reads", "io_writes"])
async def test_disks_are_counted_when_there_was_either(node: Rig, counted: str) -> None:
    node.protect.workload_stats = pb.WorkloadStatsRow(io_read_bytes=5, io_write_bytes=6, **{counted: 1})  # type: ignore[arg-type]
    await node.started(await node.pod())
    every = figures((await found(node)).container_metrics[0].metrics)
    assert every["fs_reads_bytes_total", DEVICE] == 5 and every["fs_writes_bytes_total", DEVICE] == 6
    assert every["blkio_device_usage_total", DEVICE, "", "", "Write"] == 6


async def test_each_figure_of_a_pod_has_its_source(node: Rig) -> None:
    node.protect.zone_stats = pb.ZoneStatsRow(
        cpu_usage_ns=7 * SECOND, memory_usage_bytes=21, memory_working_set_bytes=22, memory_rss_bytes=23,
        swap_usage_bytes=24, interfaces=[NETWORK, pb.InterfaceStats(name="eth1", tx_dropped=9)],
    )  # fmt: skip
    pod = await node.pod()
    metrics = (await found(node)).metrics
    whole = [one for one in metrics if one.label_values[0] == ""]
    assert figures(whole) == {
        ("cpu_usage_seconds_total", "total"): 7,
        ("memory_usage_bytes",): 21,
        ("memory_working_set_bytes",): 22,
        ("memory_rss",): 23,
        ("memory_swap",): 24,
    }
    assert {tuple(one.label_values[:6]) for one in whole} == {("", f"/{pod}", "", "", "default", "web")}
    network = [one for one in metrics if one.label_values[0] == "POD"]
    assert len(network) + len(whole) == len(metrics)
    assert {tuple(one.label_values[:6]) for one in network} == {("POD", f"/{pod}", "", pod, "default", "web")}
    words = ("bytes", "packets", "errors", "packets_dropped")
    names = [f"network_{way}_{word}_total" for way in ("receive", "transmit") for word in words]
    every = figures(network)
    assert [every[name, "eth0"] for name in names] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [every[name, "eth1"] for name in names] == [0, 0, 0, 0, 0, 0, 0, 9]


async def test_each_figure_of_statistics_has_its_source(node: Rig) -> None:
    """The figures of CRI's statistics that metrics have too."""
    pressure = pb.Pressure(
        some_avg10=1, some_avg60=2, some_avg300=3, some_total_us=4,
        full_avg10=5, full_avg60=6, full_avg300=7, full_total_us=8,
    )  # fmt: skip
    row = pb.WorkloadStatsRow()
    row.CopyFrom(ROW)
    for one in (row.cpu_pressure, row.memory_pressure, row.io_pressure):
        one.CopyFrom(pressure)
    node.protect.workload_stats = row
    pod = await node.pod()
    await node.started(pod)
    reply: Any = await node.cri.PodSandboxStats(cri.PodSandboxStatsRequest(pod_sandbox_id=pod))
    (stats,) = reply.stats.linux.containers
    memory, layer = stats.memory, stats.writable_layer
    assert stats.cpu.usage_core_nano_seconds.value == 17 * SECOND // 2
    assert (memory.working_set_bytes.value, memory.usage_bytes.value, memory.rss_bytes.value) == (
        104,
        103,
        105,
    )
    assert (memory.page_faults.value, memory.major_page_faults.value) == (112, 113)
    assert memory.available_bytes.value == 128 - 104
    assert (layer.used_bytes.value, layer.inodes_used.value) == (115, 17)
    assert (stats.swap.swap_usage_bytes.value, stats.swap.swap_available_bytes.value) == (108, 0)
    for psi in (stats.cpu.psi, memory.psi, stats.io.psi):
        some, full = psi.Some, psi.Full
        assert (some.Avg10, some.Avg60, some.Avg300, some.Total) == (1, 2, 3, 4)
        assert (full.Avg10, full.Avg60, full.Avg300, full.Total) == (5, 6, 7, 8)
    stamps = {
        stats.cpu.timestamp,
        memory.timestamp,
        layer.timestamp,
        stats.swap.timestamp,
        stats.io.timestamp,
    }
    assert len(stamps) == 1 and stamps.pop() > 0


@pytest.mark.parametrize(
    ("row", "memory", "swap"),
    [
        (pb.WorkloadStatsRow(memory_working_set_bytes=5), None, None),
        (pb.WorkloadStatsRow(memory_limit_bytes=4, memory_working_set_bytes=5), 0, None),
        (pb.WorkloadStatsRow(memory_swap_limit_bytes=4), None, None),
        (pb.WorkloadStatsRow(memory_limit_bytes=8, memory_swap_limit_bytes=10, swap_usage_bytes=1), 8, 1),
        (pb.WorkloadStatsRow(memory_limit_bytes=8, memory_swap_limit_bytes=8, swap_usage_bytes=1), 8, 0),
        (pb.WorkloadStatsRow(memory_limit_bytes=8, memory_swap_limit_bytes=6), 8, 0),
    ],
)
async def test_available_memory_and_swap_need_a_limit(
    node: Rig, row: pb.WorkloadStatsRow, memory: int | None, swap: int | None
) -> None:
    node.protect.workload_stats = row
    pod = await node.pod()
    await node.started(pod)
    reply: Any = await node.cri.PodSandboxStats(cri.PodSandboxStatsRequest(pod_sandbox_id=pod))
    (stats,) = reply.stats.linux.containers
    for part, name, expected in (
        (stats.memory, "available_bytes", memory),
        (stats.swap, "swap_available_bytes", swap),
    ):
        assert (getattr(part, name).value if part.HasField(name) else None) == expected
    assert not stats.HasField("io") and not stats.cpu.HasField("psi")


async def test_statistics_of_a_stopped_container_have_attributes_only(node: Rig) -> None:
    """Its attributes alone; lists leave out a container of a silent zone."""
    pod = await node.pod()
    ended, running = await node.started(pod, "ended"), await node.started(pod, "running")
    await node.cri.StopContainer(cri.StopContainerRequest(container_id=ended))
    reply: Any = await node.cri.ContainerStats(cri.ContainerStatsRequest(container_id=ended))
    assert reply.stats.attributes.id == ended and reply.stats.attributes.metadata.name == "ended"
    assert not reply.stats.HasField("cpu")
    asked = cri.ListContainerStatsRequest()
    assert [one.attributes.id for one in (await node.cri.ListContainerStats(asked)).stats] == [running]
    assert [one.container_id for one in (await found(node)).container_metrics] == [running]
