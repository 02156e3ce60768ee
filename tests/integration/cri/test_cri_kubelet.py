"""A real kubelet's figures from our statistics, with the shipped configuration and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cri.cri_daemons import IMAGE, needs_node
from tests.support.cri.kubelet import Kubelet, kubelet, needs_kubelet
from tests.support.cri.stage import Stage
from tests.support.waiting import found

pytestmark = [pytest.mark.root, needs_node, needs_kubelet, pytest.mark.asyncio(loop_scope="module")]

BUSY = "head -c 8388608 /dev/zero >/held; while :; do :; done"
MIB = 1 << 20


async def busy(kubelet: Kubelet) -> dict[str, Any]:
    """The kubelet's summary of a busy pod, as soon as the container has rates."""
    kubelet.run("busy", BUSY, IMAGE)

    async def rated() -> dict[str, Any] | None:
        pod = await kubelet.summary("busy")
        return pod if "usageNanoCores" in _container(pod).get("cpu", {}) else None

    return await found(rated, 120)


def _container(pod: dict[str, Any]) -> dict[str, Any]:
    return next(iter(pod.get("containers") or ()), {})


async def test_figures_with_the_shipped_configuration(stage: Stage, tmp_path: Path) -> None:
    async with kubelet(stage.node, tmp_path / "k", shipped=True) as node:
        pod = await busy(node)
        container = _container(pod)
        for figures in (pod, container):
            assert figures["cpu"]["usageNanoCores"] > 0 and figures["cpu"]["usageCoreNanoSeconds"] > 0
            assert figures["memory"]["workingSetBytes"] > 0 and figures["memory"]["rssBytes"] > 0
            assert figures["memory"]["usageBytes"] >= 8 * MIB
        assert pod["memory"]["availableBytes"] > 0
        assert pod["network"]["name"] == "eth0" and pod["network"]["txBytes"] > 0
        assert pod["process_stats"]["process_count"] > 0
        assert container["rootfs"]["usedBytes"] >= 8 * MIB and container["rootfs"]["inodesUsed"] > 0
        metrics = await node.get("/metrics/cadvisor")
        for name in (
            "cpu_usage_seconds_total", "memory_working_set_bytes", "network_receive_bytes_total",
            "fs_usage_bytes", "processes", "start_time_seconds", "spec_memory_limit_bytes",
        ):  # fmt: skip
            assert f'container_{name}{{container="' in metrics
        resources = await node.get("/metrics/resource")
        assert (
            "pod_cpu_usage_seconds_total{" in resources and "container_memory_working_set_bytes{" in resources
        )


async def test_figures_without_the_shipped_configuration(stage: Stage, tmp_path: Path) -> None:
    async with kubelet(stage.node, tmp_path / "k", shipped=False) as node:
        pod = await busy(node)
        container = _container(pod)
        assert container["cpu"]["usageNanoCores"] > 0 and container["memory"]["workingSetBytes"] > 0
        assert container["rootfs"]["usedBytes"] >= 8 * MIB
        # This kubelet makes no control groups of pods (cgroupsPerQOS), and adds up the containers.
        assert pod["cpu"]["usageNanoCores"] == container["cpu"]["usageNanoCores"]
        assert "network" not in pod and "process_stats" not in pod
        assert "container_memory_working_set_bytes{" in await node.get("/metrics/resource")
