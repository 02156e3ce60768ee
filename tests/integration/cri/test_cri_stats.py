"""Statistics and metrics of real pods."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import Stage
from tests.support.waiting import found, until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

MIB = 1 << 20
BUSY = (
    "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; "
    "head -c 8388608 /dev/zero >/held; touch /ready; sleep 600"
)


async def ready(stage: Stage, container: str) -> None:
    await stage.output(container, "until [ -e /ready ]; do sleep 0.05; done")


async def pod_stats(stage: Stage) -> dict[str, cri.LinuxPodSandboxStats]:
    request = cri.ListPodSandboxStatsRequest()
    reply = await stage.client.runtime.ListPodSandboxStats(request, timeout=60)
    return {one.attributes.id: one.linux for one in reply.stats}


async def once(stage: Stage, true: Callable[[dict[str, cri.LinuxPodSandboxStats]], bool]) -> None:
    """A late zone is left out of an answer, or shown with earlier figures."""

    async def seen() -> bool:
        return true(await pod_stats(stage))

    await until(seen)


async def test_statistics_show_the_usage_of_a_pod(stage: Stage) -> None:
    pod = await stage.client.run_pod("web")
    await once(stage, lambda found: pod.id in found)
    before = (await pod_stats(stage))[pod.id]
    limit = cri.LinuxContainerResources(memory_limit_in_bytes=64 * MIB)
    container = await stage.started(pod, BUSY, linux=cri.LinuxContainerConfig(resources=limit))
    await ready(stage, container)
    grown = before.memory.usage_bytes.value + 4 * MIB
    await once(stage, lambda found: found[pod.id].memory.usage_bytes.value > grown)
    after = (await pod_stats(stage))[pod.id]
    assert after.cpu.usage_core_nano_seconds.value > before.cpu.usage_core_nano_seconds.value
    assert after.memory.usage_bytes.value > grown
    assert 0 < after.memory.working_set_bytes.value <= after.memory.usage_bytes.value
    assert after.memory.available_bytes.value > 0 and after.memory.rss_bytes.value > 0
    assert after.process.process_count.value >= 1 and before.process.process_count.value == 0
    assert (
        after.network.default_interface.name == "eth0" and after.network.default_interface.tx_bytes.value > 0
    )
    (inner,) = after.containers
    assert inner.attributes.id == container and inner.memory.usage_bytes.value >= 8 * MIB
    assert inner.memory.available_bytes.value < 64 * MIB
    assert inner.writable_layer.used_bytes.value >= 8 * MIB
    assert abs(after.cpu.timestamp - time.time_ns()) < 60 * 10**9
    if Path("/proc/pressure/cpu").exists():
        assert after.cpu.psi.Some.Total > 0


async def test_a_cpu_rate_is_unset_or_true(stage: Stage) -> None:
    pod = await stage.client.run_pod("web")
    await stage.started(pod, "while :; do :; done")
    await first_rate(stage, pod.id)
    await stage.node.daemon.stop()
    await stage.node.daemon.start()
    await first_rate(stage, pod.id)
    await stage.node.protectd.daemon.stop()
    await stage.node.protectd.daemon.start()
    await first_rate(stage, pod.id)


async def first_rate(stage: Stage, pod: str) -> None:
    """Wait for a rate; a busy pod is never said to have none at all."""

    async def rated() -> cri.LinuxPodSandboxStats | None:
        stats = (await answered(stage)).get(pod)
        return stats if stats and stats.cpu.HasField("usage_nano_cores") else None

    stats = await found(rated)
    (inner,) = stats.containers
    assert stats.cpu.usage_nano_cores.value > 0
    assert not inner.cpu.HasField("usage_nano_cores") or inner.cpu.usage_nano_cores.value > 0


async def answered(stage: Stage) -> dict[str, cri.LinuxPodSandboxStats]:
    """The answer, or nothing while protectd or the pod's agent is away."""
    try:
        return await pod_stats(stage)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return {}


async def test_metrics_of_a_busy_container_are_plausible(stage: Stage) -> None:
    pod = await stage.client.run_pod("web")
    container = await stage.started(pod, BUSY)
    await ready(stage, container)
    runtime = stage.client.runtime
    known = (await runtime.ListMetricDescriptors(cri.ListMetricDescriptorsRequest())).descriptors
    keys = {one.name: len(one.label_keys) for one in known}
    (found,) = (await runtime.ListPodSandboxMetrics(cri.ListPodSandboxMetricsRequest())).pod_metrics
    (own,) = found.container_metrics
    assert (found.pod_sandbox_id, own.container_id) == (pod.id, container)
    assert all(len(one.label_values) == keys[one.name] for one in [*found.metrics, *own.metrics])
    values = {one.name: one.value.value for one in own.metrics}
    assert values["container_memory_usage_bytes"] >= 8 * MIB <= values["container_fs_usage_bytes"]
    assert values["container_processes"] >= 1 <= values["container_file_descriptors"]
    assert values["container_start_time_seconds"] <= values["container_last_seen"]
    network = {one.name: one.value.value for one in found.metrics}
    assert network["container_network_transmit_bytes_total"] > 0


async def test_a_silent_zone_delays_nobody(stage: Stage) -> None:
    silent, well = await stage.client.run_pod("silent"), await stage.client.run_pod("well")
    await once(stage, lambda found: set(found) == {silent.id, well.id})
    pid = int(
        (stage.node.protectd.run_dir / "fake" / "domains").glob("*/pid").__next__().read_text().split()[0]
    )
    os.kill(pid, signal.SIGSTOP)  # one of the two
    try:
        await pod_stats(stage)  # the zone is late, and shown with earlier figures
        quickest = 60.0
        for _ in range(20):
            begun = time.monotonic()
            assert await pod_stats(stage)
            quickest = min(quickest, time.monotonic() - begun)
        assert quickest < 0.4, "protectd waits half a second for a zone that is not known to be late"
    finally:
        os.kill(pid, signal.SIGCONT)
    await once(stage, lambda found: set(found) == {silent.id, well.id})
