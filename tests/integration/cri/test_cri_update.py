"""Changes of resources, as shown by the container's own cgroups."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import container_status, needs_node
from tests.support.cri.stage import Stage
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

MIB = 1 << 20


async def memory_limit(stage: Stage, container: str) -> int:
    """The memory limit by the statistics: working set plus what is available."""
    request = cri.ContainerStatsRequest(container_id=container)
    memory = (await stage.client.runtime.ContainerStats(request, timeout=60)).stats.memory
    return memory.working_set_bytes.value + memory.available_bytes.value


async def test_limits_change_and_survive_a_restart(stage: Stage) -> None:
    pod = await stage.client.run_pod("web")
    limits = cri.LinuxContainerResources(
        memory_limit_in_bytes=64 * MIB, memory_swap_limit_in_bytes=64 * MIB, cpu_shares=1024
    )
    container = await stage.started(pod, "sleep 600", linux=cri.LinuxContainerConfig(resources=limits))
    assert await memory_limit(stage, container) == 64 * MIB
    wanted = cri.LinuxContainerResources(
        memory_limit_in_bytes=128 * MIB, cpu_quota=50_000, cpu_period=100_000
    )
    update = cri.UpdateContainerResourcesRequest(container_id=container, linux=wanted)
    await stage.client.runtime.UpdateContainerResources(update, timeout=60)
    assert await memory_limit(stage, container) == 128 * MIB
    await stage.node.daemon.crash()
    await stage.node.daemon.start()
    async with stage.node.client() as client:
        shown = (await container_status(client, container)).resources.linux
        assert (shown.memory_limit_in_bytes, shown.cpu_quota, shown.cpu_shares) == (128 * MIB, 50_000, 1024)
        impossible = cri.LinuxContainerResources(cpuset_cpus="900-901")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.runtime.UpdateContainerResources(
                cri.UpdateContainerResourcesRequest(container_id=container, linux=impossible), timeout=30
            )
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert (await container_status(client, container)).resources.linux == shown


async def test_applied_limits_are_shown_when_another_limit_of_the_update_is_refused(stage: Stage) -> None:
    pod = await stage.client.run_pod("web")
    # the kubelet's limits for a container with CPUs of its own
    limits = cri.LinuxContainerResources(memory_limit_in_bytes=64 * MIB, cpu_quota=-1, cpu_period=100_000)
    container = await stage.started(pod, "sleep 600", linux=cri.LinuxContainerConfig(resources=limits))
    wanted = cri.LinuxContainerResources(
        memory_limit_in_bytes=96 * MIB, cpu_quota=-1, oom_score_adj=900, cpuset_cpus="900-901"
    )
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stage.client.runtime.UpdateContainerResources(
            cri.UpdateContainerResourcesRequest(container_id=container, linux=wanted), timeout=30
        )
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "cpuset" in (raised.value.details() or "")
    shown = (await container_status(stage.client, container)).resources.linux
    assert (shown.memory_limit_in_bytes, shown.cpuset_cpus, shown.oom_score_adj) == (96 * MIB, "", 0)
    assert await memory_limit(stage, container) == 96 * MIB


async def test_a_pod_larger_than_its_zone_is_refused(stage: Stage) -> None:
    pod = await stage.client.run_pod("web")
    huge = cri.LinuxContainerResources(memory_limit_in_bytes=2**40)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stage.client.runtime.UpdatePodSandboxResources(
            cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod.id, resources=huge), timeout=30
        )
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "MiB wanted, the zone can have" in (raised.value.details() or "")
    fits = cri.LinuxContainerResources(memory_limit_in_bytes=MIB)
    await stage.client.runtime.UpdatePodSandboxResources(
        cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod.id, resources=fits), timeout=30
    )
