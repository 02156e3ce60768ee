"""Pods that are resized in place: the kubelet, the container, and the zone end in the same state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.cluster.api import PATIENCE, Object
from tests.support.cluster.cgroups import control_group
from tests.support.cluster.cluster import GROWING, PODS, Cluster, pod
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import IMAGE, needs_node

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20


@pytest_asyncio.fixture(loop_scope="session")
async def resizing(cluster: Cluster) -> AsyncIterator[Cluster]:
    """A kubelet that gives pods control groups: only such pods can be resized."""
    with control_group(cluster.folder) as root:
        await cluster.use_kubelet(shipped=True, cgroupsPerQOS=True, cgroupRoot=root)
        try:
            yield cluster
        finally:
            await cluster.tidy()
            await cluster.use_kubelet(shipped=True)


def sized(memory: int, milli: int) -> dict[str, Any]:
    amounts = {"memory": f"{memory}Mi", "cpu": f"{milli}m"}
    return {"resources": {"limits": amounts, "requests": amounts}}


async def create(cluster: Cluster, memory: int, milli: int) -> int:
    """Create a pod of this size; MiB of its zone's memory beyond the pod's."""
    await cluster.create("sized", "sleep", "1000", container=sized(memory, milli), runtimeClassName=GROWING)
    await cluster.started("sized")
    (zone,) = await cluster.zones()
    assert zone.resources.vcpus == -(-milli // 1000)
    return zone.resources.memory_bytes // MIB - memory


async def ask(cluster: Cluster, memory: int, milli: int) -> None:
    found = await cluster.api.get(f"{PODS}/sized")
    first, *others = found["spec"]["containers"]
    containers = [{**first, **sized(memory, milli)}, *others]
    await cluster.api.patch(f"{PODS}/sized/resize", {"spec": {"containers": containers}})


def is_sized(memory: int, milli: int) -> Any:
    wanted = {"memory": f"{memory}Mi", "cpu": f"{milli}m" if milli % 1000 else str(milli // 1000)}

    def holds(found: Object) -> bool:
        status = found["status"]
        pending = {one["type"] for one in status["conditions"]} & {"PodResizePending", "PodResizeInProgress"}
        return not pending and status["containerStatuses"][0].get("resources", {}).get("limits") == wanted

    return holds


@pytest.mark.parametrize(
    "steps", [[(300, 1500), (120, 1000)], [(100, 1700), (200, 500), (400, 500)]], ids=["both", "mixed"]
)
async def test_a_pod_ends_in_the_size_asked_for(resizing: Cluster, steps: list[tuple[int, int]]) -> None:
    beside = await create(resizing, 150, 1000)
    for memory, milli in steps:
        await ask(resizing, memory, milli)
        seen = await resizing.until("sized", is_sized(memory, milli))
        assert seen["status"]["containerStatuses"][0]["restartCount"] == 0
        await _zone_has(resizing, memory + beside, -(-milli // 1000))


async def _zone_has(cluster: Cluster, memory: int, vcpus: int) -> None:
    """The kubelet tells the sandbox last, after it has shown the containers' new state."""
    found = (0, 0)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while found != (memory, vcpus):
                (zone,) = await cluster.zones()
                found = (zone.resources.memory_bytes // MIB, zone.resources.vcpus)
                await asyncio.sleep(0.1)
    assert found == (memory, vcpus)


async def test_pod_with_an_unlimited_container_is_resized(resizing: Cluster) -> None:
    """The pod itself has no limit; the kubelet sends the limit of the pod's control group."""
    beside = {"name": "beside", "image": IMAGE, "command": ["sleep", "1000"]}
    made = pod("sized", "sleep", "1000", container=sized(100, 500))
    made["spec"]["containers"].append(beside)
    await resizing.api.post(PODS, made)
    await resizing.until("sized", lambda found: _running(found) == 2)
    (zone,) = await resizing.zones()
    await ask(resizing, 400, 700)
    await resizing.until("sized", lambda found: _limits(found, "main") == {"memory": "400Mi", "cpu": "700m"})
    (grown,) = await resizing.zones()
    assert zone.resources.memory_bytes < 400 * MIB < grown.resources.memory_bytes < 600 * MIB


def _running(found: Object) -> int:
    return sum("running" in one["state"] for one in found["status"].get("containerStatuses") or ())


def _limits(found: Object, name: str) -> Any:
    (one,) = (one for one in found["status"]["containerStatuses"] if one["name"] == name)
    return one.get("resources", {}).get("limits")


async def test_more_than_the_zone_can_become_is_said(resizing: Cluster) -> None:
    """The pod goes on as before."""
    beside = await create(resizing, 150, 1000)
    await ask(resizing, 900, 1000)
    said = await resizing.event("sized", "the zone can have")
    assert "memory: " in said
    await _zone_has(resizing, 150 + beside, 1)
    found = await resizing.api.get(f"{PODS}/sized")
    assert found["status"]["containerStatuses"][0]["resources"]["limits"]["memory"] == "150Mi"
    assert found["status"]["phase"] == "Running"
