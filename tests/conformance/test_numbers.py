"""Events, statistics, metrics, and changes of running containers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.support.cri.conformance import SuiteStage, linux, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.events import PATIENCE
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
BUSY = (
    "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; "
    "head -c 8388608 /dev/zero >/held; touch /ready; exec sleep 100000"
)


async def busy(stage: SuiteStage, pod: Pod, **fields: Any) -> str:
    """A container that has used some of every resource."""
    container = await stage.started(pod, BUSY, **fields)
    await stage.output(container, "until [ -e /ready ]; do usleep 20000; done")
    return container


async def test_events_of_a_pods_life(stage: SuiteStage) -> None:
    call: Any = stage.runtime.GetContainerEvents(cri.GetEventsRequest())
    pod = await stage.run_pod("events")
    container = await stage.started(pod, "exit 3")
    await stage.ended(container)
    await stage.client.remove_container(container)
    await stage.client.remove_pod(pod.id)
    stage.made.clear()
    seen: list[cri.ContainerEventResponse] = []
    async with asyncio.timeout(PATIENCE):
        while not seen or (seen[-1].container_id, seen[-1].container_event_type) != (
            pod.id, cri.CONTAINER_DELETED_EVENT,
        ):  # fmt: skip
            event = await call.read()
            if event.container_id in (pod.id, container):
                seen.append(event)
    call.cancel()
    created, started, stopped, deleted = (
        getattr(cri, f"CONTAINER_{name}_EVENT") for name in ("CREATED", "STARTED", "STOPPED", "DELETED")
    )
    assert [(one.container_id, one.container_event_type) for one in seen] == [
        (pod.id, created), (pod.id, started),
        (container, created), (container, started), (container, stopped), (container, deleted),
        (pod.id, stopped), (pod.id, deleted),
    ]  # fmt: skip
    assert seen[1].pod_sandbox_status.network.ip and seen[1].created_at > 0
    (end,) = seen[4].containers_statuses
    assert (end.id, end.exit_code, end.reason) == (container, 3, "Error")
    assert [one.created_at for one in seen] == sorted(one.created_at for one in seen)


async def test_container_statistics_count_use_and_select_by_label(stage: SuiteStage, shared_pod: Pod) -> None:
    labels = {"set": "stats"}
    limit = cri.LinuxContainerResources(memory_limit_in_bytes=64 * MIB)
    container = await busy(stage, shared_pod, labels=labels, linux=linux(limit))
    other = await stage.started(shared_pod, labels=labels)
    request = cri.ContainerStatsRequest(container_id=container)
    one = (await stage.runtime.ContainerStats(request, timeout=PATIENCE)).stats
    assert one.attributes.id == container and dict(one.attributes.labels) == labels
    assert one.cpu.usage_core_nano_seconds.value > 0
    assert abs(one.cpu.timestamp - time.time_ns()) < PATIENCE * 10**9
    memory = one.memory
    assert memory.usage_bytes.value >= 8 * MIB and memory.working_set_bytes.value > 0
    assert memory.rss_bytes.value > 0 and memory.page_faults.value > 0
    assert 0 < memory.available_bytes.value < 64 * MIB
    assert one.writable_layer.used_bytes.value >= 8 * MIB
    wanted = cri.ContainerStatsFilter(label_selector=labels)
    found = await stage.runtime.ListContainerStats(
        cri.ListContainerStatsRequest(filter=wanted), timeout=PATIENCE
    )
    stream = stage.runtime.StreamContainerStats(
        cri.StreamContainerStatsRequest(filter=wanted), timeout=PATIENCE
    )
    streamed = [item.attributes.id async for part in stream for item in part.container_stats]
    assert {item.attributes.id for item in found.stats} == set(streamed) == {container, other}
    assert len(streamed) == len(found.stats) == 2


async def test_pod_statistics_grow_with_use(stage: SuiteStage, shared_pod: Pod) -> None:
    container = await busy(stage, shared_pod)
    request = cri.PodSandboxStatsRequest(pod_sandbox_id=shared_pod.id)
    before = (await stage.runtime.PodSandboxStats(request, timeout=PATIENCE)).stats.linux
    await stage.output(
        container, "head -c 4194304 /dev/zero >/more; i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done"
    )
    after = (await stage.runtime.PodSandboxStats(request, timeout=PATIENCE)).stats.linux
    assert after.cpu.usage_core_nano_seconds.value > before.cpu.usage_core_nano_seconds.value > 0
    assert after.memory.usage_bytes.value > before.memory.usage_bytes.value
    assert 0 < after.memory.working_set_bytes.value <= after.memory.usage_bytes.value
    assert after.process.process_count.value >= 1
    eth0 = after.network.default_interface
    assert eth0.name == "eth0" and eth0.tx_bytes.value > 0
    assert container in [one.attributes.id for one in after.containers]
    wanted = cri.PodSandboxStatsFilter(id=shared_pod.id)
    found = await stage.runtime.ListPodSandboxStats(
        cri.ListPodSandboxStatsRequest(filter=wanted), timeout=PATIENCE
    )
    stream = stage.runtime.StreamPodSandboxStats(
        cri.StreamPodSandboxStatsRequest(filter=wanted), timeout=PATIENCE
    )
    streamed = [item.attributes.id async for part in stream for item in part.pod_sandbox_stats]
    assert [item.attributes.id for item in found.stats] == streamed == [shared_pod.id]


async def test_metrics_have_described_labels_and_plausible_values(stage: SuiteStage, shared_pod: Pod) -> None:
    container = await busy(stage, shared_pod)
    described = await stage.runtime.ListMetricDescriptors(
        cri.ListMetricDescriptorsRequest(), timeout=PATIENCE
    )
    keys = {one.name: len(one.label_keys) for one in described.descriptors}
    listed = await stage.runtime.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest(), timeout=PATIENCE)
    stream = stage.runtime.StreamPodSandboxMetrics(cri.StreamPodSandboxMetricsRequest(), timeout=PATIENCE)
    streamed = [item async for part in stream for item in part.pod_sandbox_metrics]
    for found in (listed.pod_metrics, streamed):
        (pod,) = [one for one in found if one.pod_sandbox_id == shared_pod.id]
        (own,) = [one for one in pod.container_metrics if one.container_id == container]
        every = [*pod.metrics, *own.metrics]
        assert all(len(one.label_values) == keys[one.name] for one in every)
        values = {one.name: one.value.value for one in own.metrics}
        assert values["container_memory_usage_bytes"] >= 8 * MIB <= values["container_fs_usage_bytes"]
        assert {one.name: one.value.value for one in pod.metrics}[
            "container_network_transmit_bytes_total"
        ] > 0


async def test_changed_limits_are_shown_and_in_effect(stage: SuiteStage, shared_pod: Pod) -> None:
    """In the zone's cgroups, and in ContainerStatus. The smallest zone has memory for both limits."""
    first = cri.LinuxContainerResources(memory_limit_in_bytes=16 * MIB, cpu_shares=1024)
    container = await stage.started(shared_pod, linux=linux(first))
    wanted = cri.LinuxContainerResources(memory_limit_in_bytes=32 * MIB, cpu_quota=50_000, cpu_period=100_000)
    request = cri.UpdateContainerResourcesRequest(container_id=container, linux=wanted)
    await stage.runtime.UpdateContainerResources(request, timeout=PATIENCE)
    stats = cri.ContainerStatsRequest(container_id=container)
    memory = (await stage.runtime.ContainerStats(stats, timeout=PATIENCE)).stats.memory
    assert memory.working_set_bytes.value + memory.available_bytes.value == 32 * MIB
    shown = (await stage.status(container)).resources.linux
    assert (shown.memory_limit_in_bytes, shown.cpu_quota, shown.cpu_shares) == (32 * MIB, 50_000, 1024)
    with refused("FAILED_PRECONDITION"):
        request.linux.cpuset_cpus = "900-901"
        await stage.runtime.UpdateContainerResources(request, timeout=PATIENCE)
    assert (await stage.status(container)).resources.linux == shown
    await stage.runtime.StopContainer(cri.StopContainerRequest(container_id=container), timeout=PATIENCE)
    with refused("FAILED_PRECONDITION", container):
        await stage.runtime.UpdateContainerResources(request, timeout=PATIENCE)
