"""Statistics and metrics over a protect.v1 in memory."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.stats import sampler
from cri.stats.rates import Rates
from cri.stats.values import LARGEST_UINT64
from daemonkit.faults import Unreachable
from tests.support.cri.cri_node import Rig, rig
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

SECOND = 10**9
PRESSURE = pb.Pressure(some_avg10=1.5, some_total_us=3_000_000, full_avg300=0.5, full_total_us=2_000_000)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def pod_stats(node: Rig, pod: str) -> cri.PodSandboxStats:
    reply: Any = await node.cri.PodSandboxStats(cri.PodSandboxStatsRequest(pod_sandbox_id=pod))
    return reply.stats  # type: ignore[no-any-return]


async def listed(node: Rig, **fields: Any) -> list[str]:
    request = cri.ListPodSandboxStatsRequest(filter=cri.PodSandboxStatsFilter(**fields))
    return [one.attributes.id for one in (await node.cri.ListPodSandboxStats(request)).stats]


async def test_a_pods_statistics_have_its_attributes_and_figures(node: Rig) -> None:
    node.protect.zone_stats = pb.ZoneStatsRow(
        cpu_usage_ns=9, memory_usage_bytes=8, memory_working_set_bytes=7, memory_rss_bytes=6,
        memory_available_bytes=5, page_faults=4, major_page_faults=3, io_pressure=PRESSURE,
        interfaces=[
            pb.InterfaceStats(name="eth0", rx_bytes=1, rx_errors=2, tx_bytes=3, tx_errors=4),
            pb.InterfaceStats(name="eth1", rx_bytes=5),
        ],
    )  # fmt: skip
    node.protect.workload_stats = pb.WorkloadStatsRow(
        cpu_usage_ns=11, pids_current=2, cpu_pressure=PRESSURE, memory_limit_bytes=100,
        memory_working_set_bytes=30, memory_swap_limit_bytes=150, swap_usage_bytes=20,
    )  # fmt: skip
    pod = await node.pod(labels={"a": "b"}, annotations={"c": "d"})
    first, second = await node.started(pod, "first"), await node.started(pod, "second")
    stats = await pod_stats(node, pod)
    assert stats.attributes.id == pod and stats.attributes.metadata.name == "web"
    assert (dict(stats.attributes.labels), dict(stats.attributes.annotations)) == ({"a": "b"}, {"c": "d"})
    linux = stats.linux
    assert linux.cpu.usage_core_nano_seconds.value == 9 and not linux.cpu.HasField("psi")
    memory = linux.memory
    assert (memory.usage_bytes.value, memory.working_set_bytes.value, memory.rss_bytes.value) == (8, 7, 6)
    assert (memory.available_bytes.value, memory.page_faults.value, memory.major_page_faults.value) == (
        5,
        4,
        3,
    )
    assert linux.process.process_count.value == 4
    assert linux.io.psi.Some.Avg10 == 1.5 and linux.io.psi.Full.Total == 2_000_000
    default = linux.network.default_interface
    assert (default.name, default.rx_bytes.value, default.rx_errors.value) == ("eth0", 1, 2)
    assert (default.tx_bytes.value, default.tx_errors.value) == (3, 4)
    assert [(one.name, one.rx_bytes.value) for one in linux.network.interfaces] == [("eth1", 5)]
    assert {one.attributes.id for one in linux.containers} == {first, second}
    inner = linux.containers[0]
    assert inner.cpu.psi.Full.Avg300 == 0.5 and not inner.memory.HasField("psi")
    assert inner.memory.available_bytes.value == 70
    assert (inner.swap.swap_usage_bytes.value, inner.swap.swap_available_bytes.value) == (20, 30)


async def test_lists_of_statistics_are_filtered(node: Rig) -> None:
    pods = [await node.pod(f"pod-{number}", labels={"odd": str(number % 2)}) for number in range(4)]
    assert await listed(node) == pods
    assert [list(request.ids) for request in node.protect.stats_requests] == [[]]  # all: no list of ids
    assert await listed(node, label_selector={"odd": "1"}) == pods[1::2]
    assert await listed(node, id=pods[0][:20]) == [pods[0]]
    assert await listed(node, id="nobody") == []
    assert node.protect.calls.count("ZoneStats") == 3
    stream = node.cri.StreamPodSandboxStats(cri.StreamPodSandboxStatsRequest())
    assert [one.attributes.id async for message in stream for one in message.pod_sandbox_stats] == pods


async def test_stopped_pods_have_no_statistics(node: Rig) -> None:
    stopped, silent, running = await node.pod("stopped"), await node.pod("silent"), await node.pod("running")
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=stopped))
    node.protect.silent.add(silent)
    assert await listed(node) == [running]
    for pod, code in (
        (stopped, grpc.StatusCode.FAILED_PRECONDITION),
        (silent, grpc.StatusCode.UNAVAILABLE),
        ("nobody", grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await pod_stats(node, pod)
        assert raised.value.code() is code


async def test_a_zones_absurd_claims_do_not_break_the_list(node: Rig) -> None:
    node.protect.zone_stats = pb.ZoneStatsRow(cpu_usage_ns=LARGEST_UINT64, memory_usage_bytes=LARGEST_UINT64)
    node.protect.workload_stats = pb.WorkloadStatsRow(
        pids_current=LARGEST_UINT64, cpu_usage_ns=LARGEST_UINT64
    )
    pod = await node.pod()
    for name in ("a", "b"):
        await node.started(pod, name)
    stats = await pod_stats(node, pod)
    assert stats.linux.process.process_count.value == LARGEST_UINT64
    assert (await node.cri.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest())).pod_metrics


async def test_streamed_container_statistics_are_filtered(node: Rig) -> None:
    pod = await node.pod()
    containers = [await node.started(pod, f"c{number}") for number in range(3)]
    stream = node.cri.StreamContainerStats(cri.StreamContainerStatsRequest())
    assert [one.attributes.id async for m in stream for one in m.container_stats] == containers
    wanted = cri.StreamContainerStatsRequest(filter=cri.ContainerStatsFilter(id=containers[1]))
    stream = node.cri.StreamContainerStats(wanted)
    assert [one.attributes.id async for m in stream for one in m.container_stats] == [containers[1]]


def test_a_rate_is_unknown_until_two_readings_are_a_second_apart() -> None:
    rates = Rates()
    assert rates.rate("a", SECOND, 100) is None
    assert rates.rate("a", SECOND + SECOND // 2, 10**12) is None
    assert rates.rate("a", 3 * SECOND, 100 + SECOND) == SECOND // 2
    assert rates.rate("a", 2 * SECOND, 100) == 0
    rates.keep(["b"])
    assert rates.rate("a", 5 * SECOND, 100) is None


def test_a_rate_covers_the_last_seconds_for_any_number_of_requests() -> None:
    rates = Rates()
    for step in range(1000):
        rates.rate("a", step * SECOND // 50, 0)
    last = 999 * SECOND // 50
    rate = rates.rate("a", last + SECOND // 100, SECOND)
    assert rate is not None and SECOND // 10 < rate < SECOND // 5
    assert rates.rate("a", last + 30 * SECOND, SECOND) == pytest.approx(SECOND / 33, rel=0.1)
    assert rates.rate("a", last + 60 * SECOND, SECOND) == 0


def test_a_rate_is_unknown_when_the_counter_or_the_clock_begins_anew() -> None:
    rates = Rates()
    rates.rate("a", 100 * SECOND, 10**12)
    assert rates.rate("a", 102 * SECOND, 5) is None
    assert rates.rate("a", 104 * SECOND, 5 + 2 * SECOND) == SECOND
    assert rates.rate("a", 101 * SECOND, 4) is None  # a late answer does not count
    assert rates.rate("a", 104 * SECOND, 5 + 2 * SECOND) == SECOND
    assert rates.rate("a", SECOND, 0) is None  # the clock was set back
    assert rates.rate("a", 2 * SECOND, LARGEST_UINT64) == LARGEST_UINT64


async def test_the_first_rate_is_unset(node: Rig) -> None:
    pod = await node.pod()
    await node.started(pod)
    linux = (await pod_stats(node, pod)).linux
    assert linux.cpu.HasField("usage_core_nano_seconds") and not linux.cpu.HasField("usage_nano_cores")
    (inner,) = linux.containers
    assert inner.cpu.HasField("usage_core_nano_seconds") and not inner.cpu.HasField("usage_nano_cores")


async def test_without_a_default_interface_the_network_is_left_out(node: Rig) -> None:
    node.protect.zone_stats = pb.ZoneStatsRow(interfaces=[pb.InterfaceStats(name="other0", rx_bytes=1)])
    stats = await pod_stats(node, await node.pod())
    assert stats.linux.HasField("memory") and not stats.linux.HasField("network")


async def test_new_pods_and_containers_are_sampled_soon(node: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(sampler, "_RETRY_SECONDS", 0.01)
    earlier = await node.pod("earlier")
    async with sampler.sampling(node.daemon.records, node.daemon.zones, node.daemon.follower.synced) as rates:
        await until(lambda: rates.read_ns(earlier) is not None)
        node.protect.failures["ZoneStats"] = Unreachable("read", "statistics", "not now")
        pod = await node.pod()
        asked = node.protect.calls.count("ZoneStats")
        await until(lambda: node.protect.calls.count("ZoneStats") > asked)
        assert rates.read_ns(pod) is None
        del node.protect.failures["ZoneStats"]
        await until(lambda: rates.read_ns(pod) is not None)
        container = await node.started(pod)
        await until(lambda: None not in (rates.read_ns(pod), rates.read_ns(container)))


async def test_recent_samples_are_not_read_again(node: Rig) -> None:
    reader = sampler.Sampler(node.daemon.records, node.daemon.zones, node.daemon.follower.synced)
    pod, other = await node.pod(), await node.pod("other")
    await reader.sample()
    await reader.sample()
    assert len(node.protect.stats_requests) == 1
    await node.started(other)
    await reader.sample()
    assert [list(request.ids) for request in node.protect.stats_requests] == [[], [other]]
    reader.interval = 0.0
    await reader.sample()
    assert len(node.protect.stats_requests) == 3
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    await reader.sample()
    assert reader.rates.read_ns(pod) is None and reader.rates.read_ns(other) is not None


async def test_nobody_who_asks_is_no_reason_to_read_often(node: Rig) -> None:
    reader = sampler.Sampler(node.daemon.records, node.daemon.zones, node.daemon.follower.synced)
    pod = await node.pod()
    reader.adapt()
    assert reader.interval == sampler._INTERVAL_SECONDS
    reader._fresh.clear()
    await reader.sample()
    for _ in range(9):
        reader.adapt()
    assert reader.interval == sampler._QUIET_SECONDS > sampler._INTERVAL_SECONDS
    # Own readings are no reason to read; a request and a new pod are.
    reader.interval = 0.0
    await reader.sample()
    reader.interval = sampler._QUIET_SECONDS
    reader.adapt()
    assert reader.interval == sampler._QUIET_SECONDS
    reader.rates.rate(pod, time.time_ns(), 0)
    reader.adapt()
    assert reader.interval == sampler._INTERVAL_SECONDS
    reader.interval = sampler._QUIET_SECONDS
    await reader.sample()
    await node.pod("new")
    reader.adapt()
    assert reader.interval == sampler._INTERVAL_SECONDS


async def test_metrics_match_their_descriptors(node: Rig) -> None:
    node.protect.zone_stats = pb.ZoneStatsRow(
        cpu_usage_ns=5 * 10**9, interfaces=[pb.InterfaceStats(name="eth0", rx_dropped=3)]
    )
    node.protect.workload_stats = pb.WorkloadStatsRow(
        cpu_usage_ns=7 * 10**9,
        cpu_pressure=PRESSURE,
        memory_pressure=PRESSURE,
        io_pressure=PRESSURE,
        io_reads=1,
    )
    pod = await node.pod()
    resources = cri.LinuxContainerResources(cpu_quota=20_000, cpu_period=50_000, cpu_shares=512)
    container = await node.started(pod, linux=cri.LinuxContainerConfig(resources=resources))
    known = (await node.cri.ListMetricDescriptors(cri.ListMetricDescriptorsRequest())).descriptors
    keys = {one.name: list(one.label_keys) for one in known}
    assert all(one.help for one in known) and len(keys) == len(known)
    (found,) = (await node.cri.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest())).pod_metrics
    assert node.protect.stats_requests[-1].details
    (own,) = found.container_metrics
    assert (found.pod_sandbox_id, own.container_id) == (pod, container)
    every = [*found.metrics, *own.metrics]
    assert {one.name for one in every} == set(keys)
    series = {(one.name, *one.label_values): one for one in every}
    assert len(series) == len(every)
    for one in every:
        assert len(one.label_values) == len(keys[one.name]) and one.timestamp > 0
    image = (await node.status(container)).image.image
    labels = dict(zip(keys["container_cpu_usage_seconds_total"], own.metrics[0].label_values, strict=True))
    assert labels == {
        "container": "main", "id": f"/{pod}/workloads/{container}", "image": image, "name": container,
        "namespace": "default", "pod": "web", "cpu": "total",
    }  # fmt: skip
    values = {one.name: one.value.value for one in own.metrics}
    assert values["container_cpu_usage_seconds_total"] == 7
    assert values["container_spec_cpu_quota"] == 20_000 and values["container_spec_cpu_shares"] == 512
    assert values["container_pressure_io_waiting_seconds_total"] == 3
    assert values["container_pressure_io_stalled_seconds_total"] == 2
    assert values["container_start_time_seconds"] > 10**9
    of_pod = {one.name: one for one in found.metrics}
    dropped = of_pod["container_network_receive_packets_dropped_total"]
    assert (dropped.value.value, dropped.label_values[0], dropped.label_values[-1]) == (3, "POD", "eth0")
    assert of_pod["container_cpu_usage_seconds_total"].value.value == 5
    assert of_pod["container_cpu_usage_seconds_total"].metric_type == cri.COUNTER


async def test_figures_missing_in_the_zones_kernel_are_left_out(node: Rig) -> None:
    await node.started(await node.pod())
    stream = node.cri.StreamPodSandboxMetrics(cri.StreamPodSandboxMetricsRequest())
    (found,) = [one async for message in stream for one in message.pod_sandbox_metrics]
    names = {one.name for one in found.container_metrics[0].metrics}
    assert not {name for name in names if "pressure" in name or "fs_reads" in name or "quota" in name}
    assert "container_memory_working_set_bytes" in names
