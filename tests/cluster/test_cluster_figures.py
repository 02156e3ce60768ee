"""The kubelet's figures of pods, with our drop-in and without, as docs/operations/kubelet.md says."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.cluster.api import PATIENCE
from tests.support.cluster.cgroups import control_group
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.kubelet import Kubelet, KubeletRefused
from tests.support.waiting import found, until

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
BUSY = "echo begins; head -c 8388608 /dev/zero >/held; while :; do :; done"
LIMITS = {"resources": {"limits": {"cpu": "500m", "memory": "128Mi"}}}
"""Limits of the busy pod; a rate may be at most a third above them."""
MOST = 500e6 * 4 / 3


async def measured(cluster: Cluster, kubelet: Kubelet) -> dict[str, Any]:
    """The summary of a busy pod, once the pod has written its file, and pod and container have rates.

    If the pod has figures of its network: also once packets were sent; the first packet is IPv6's, at any
    time.
    """
    await cluster.create("busy", "sh", "-c", BUSY, container=LIMITS)
    pod: dict[str, Any] = {}

    async def complete() -> bool:
        nonlocal pod
        pod = await kubelet.summary("busy")
        main = container(pod)
        written = main.get("rootfs", {}).get("usedBytes", 0) >= 8 * MIB
        sent = pod.get("network", {}).get("txBytes", 1) > 0
        return written and sent and "usageNanoCores" in main.get("cpu", {})

    await until(complete, PATIENCE, lambda: pod)
    return pod


def container(pod: dict[str, Any]) -> dict[str, Any]:
    return next(iter(pod.get("containers") or ()), {})


def metrics(text: str) -> dict[str, list[float]]:
    """The values of the samples of our pod, by the metric's name and whether they are a container's."""
    found: dict[str, list[float]] = {}
    for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)", text, re.MULTILINE):
        if 'pod="busy"' in labels:
            found.setdefault(name + ("" if 'container="main"' in labels else "*"), []).append(float(value))
    return found


async def exposed(kubelet: Kubelet, path: str, *names: str) -> dict[str, list[float]]:
    """The metrics of our pod, once they have these names: an answer may omit a late zone."""
    samples: dict[str, list[float]] = {}

    async def complete() -> bool:
        nonlocal samples
        samples = metrics(await kubelet.get(path))
        return set(names) <= set(samples)

    await until(complete, PATIENCE, lambda: f"{path} has {sorted(samples)}")
    return samples


def holds_for_a_container(figures: dict[str, Any]) -> None:
    """Check the figures that a container has in both cases; the first rate is already right."""
    assert 0 < figures["cpu"]["usageNanoCores"] < MOST and figures["cpu"]["usageCoreNanoSeconds"] > 0
    assert figures["memory"]["workingSetBytes"] >= 8 * MIB
    assert figures["memory"]["rssBytes"] > 0 and "swap" in figures
    assert figures["rootfs"]["usedBytes"] >= 8 * MIB and figures["rootfs"]["inodesUsed"] > 0
    assert figures["logs"]["usedBytes"] > 0


async def test_figures_with_the_shipped_configuration(cluster: Cluster) -> None:
    kubelet = await cluster.use_kubelet(shipped=True)
    pod = await measured(cluster, kubelet)
    holds_for_a_container(container(pod))
    assert pod["cpu"]["usageNanoCores"] > 0 and pod["memory"]["workingSetBytes"] >= 8 * MIB
    assert pod["network"]["name"] == "eth0" and pod["network"]["txBytes"] > 0
    assert pod["process_stats"]["process_count"] == 1
    seconds = ("container_cpu_usage_seconds_total", "pod_cpu_usage_seconds_total*")
    resources = await exposed(kubelet, "/metrics/resource", *seconds)
    assert all(resources[name][0] > 0 for name in seconds)
    advisor = await exposed(
        kubelet,
        "/metrics/cadvisor",
        *("container_memory_working_set_bytes", "container_fs_usage_bytes", seconds[0]),
        *("container_network_receive_bytes_total*", "container_memory_working_set_bytes*"),
    )
    assert advisor[seconds[0]][0].is_integer()
    assert 'id="/"' not in await kubelet.get("/metrics/cadvisor")


async def test_a_rate_is_true_again_after_both_daemons_were_killed(cluster: Cluster) -> None:
    kubelet = await cluster.use_kubelet(shipped=True)
    await measured(cluster, kubelet)
    cri, protectd = cluster.node.daemon, cluster.node.protectd.daemon
    await asyncio.gather(cri.crash(), protectd.crash())
    await protectd.start()
    await cri.start()
    begin = datetime.now(UTC)

    async def new_rate() -> float | None:
        try:
            cpu = container(await kubelet.summary("busy")).get("cpu", {})
        except KubeletRefused:  # not connected again yet
            return None
        assert cpu.get("usageNanoCores", 1) > 0
        is_new = "usageNanoCores" in cpu and datetime.fromisoformat(cpu["time"]) > begin
        return float(cpu["usageNanoCores"]) if is_new else None

    assert await found(new_rate, PATIENCE) < MOST


async def test_groups_of_pods_are_empty_without_the_configuration(cluster: Cluster) -> None:
    with control_group(cluster.folder) as root:
        kubelet = await cluster.use_kubelet(shipped=False, cgroupsPerQOS=True, cgroupRoot=root)
        try:
            pod = await measured(cluster, kubelet)
            holds_for_a_container(container(pod))
            assert pod["cpu"].get("usageNanoCores", 0) == 0 and pod["cpu"]["usageCoreNanoSeconds"] == 0
            assert pod["memory"]["workingSetBytes"] == 0
            assert "network" not in pod
            advisor = await exposed(kubelet, "/metrics/cadvisor", "container_memory_working_set_bytes*")
            assert advisor["container_memory_working_set_bytes*"] == [0.0]
            assert "container_memory_working_set_bytes" not in advisor
        finally:
            await cluster.tidy()
            await cluster.use_kubelet(shipped=True)


async def test_figures_without_the_configuration_and_without_groups(cluster: Cluster) -> None:
    kubelet = await cluster.use_kubelet(shipped=False)
    try:
        pod = await measured(cluster, kubelet)
        holds_for_a_container(container(pod))
        # This kubelet makes no control groups of pods (cgroupsPerQOS: false), and adds up the containers.
        assert pod["cpu"]["usageNanoCores"] == container(pod)["cpu"]["usageNanoCores"]
        assert pod["memory"]["workingSetBytes"] == container(pod)["memory"]["workingSetBytes"]
        assert "network" not in pod and "process_stats" not in pod
        memory = ("container_memory_working_set_bytes", "pod_memory_working_set_bytes*")
        resources = await exposed(kubelet, "/metrics/resource", *memory)
        assert all(resources[name][0] >= 8 * MIB for name in memory)
        advisor = await kubelet.get("/metrics/cadvisor")
        assert "container_memory_working_set_bytes" not in metrics(advisor)
        assert 'id="/"' in advisor
    finally:
        await cluster.use_kubelet(shipped=True)
