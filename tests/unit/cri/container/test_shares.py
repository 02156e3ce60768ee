"""The CPU share of a pod's zone, and the times when protectd is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.container.shares import ZoneShares, cap, weight, zone_shares
from daemonkit.faults import Unreachable
from tests.support.cri.cri_node import Rig, pod_config, rig
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

Resources = cri.LinuxContainerResources
OVERHEAD = 10


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("cpu_shares", "expected"),
    [
        (0, 256), (1, 1), (2, 1), (4, 1), (5, 1), (6, 2), (102, 26), (512, 128), (1024, 256), (4096, 1024),
        (262_140, 65_535), (262_144, 65_535), (2**62, 65_535),
    ],
)  # fmt: skip
def test_shares_become_a_weight(cpu_shares: int, expected: int) -> None:
    assert weight(cpu_shares) == expected


@pytest.mark.parametrize(
    ("quota", "period", "expected"),
    [
        (0, 0, 0), (-1, 100_000, 0), (50_000, 100_000, 50), (50_000, 0, 50), (1, 100_000, 1),
        (100_000, 100_000, 100), (150_001, 100_000, 151), (25_000, 10_000, 250), (1_000_000, 1000, 100_000),
    ],
)  # fmt: skip
def test_a_quota_becomes_a_cap(quota: int, period: int, expected: int) -> None:
    assert cap(quota, period) == expected


def limited(quota: int, shares: int = 2) -> Resources:
    """As the kubelet sets limits: always with a period."""
    return Resources(cpu_shares=shares, cpu_quota=quota, cpu_period=100_000)


FREE = limited(0)


@pytest.mark.parametrize(
    ("pod", "overhead", "containers", "expected"),
    [
        (Resources(), Resources(), [], (256, 0)),
        (limited(50_000, 512), Resources(), [], (128, 60)),
        # the pod's own figures are already sums, for any update of its containers
        (limited(50_000, 512), Resources(), [limited(50_000, 512), limited(50_000, 512)], (128, 60)),
        (limited(50_000, 512), limited(25_000, 256), [limited(50_000, 512)], (192, 75)),
        # an overhead of memory alone: the kubelet's least shares, no quota
        (limited(50_000, 512), limited(0), [], (128, 60)),
        # a sidecar with a limit must not bind a container without one
        (limited(10_000, 102), Resources(), [limited(10_000, 102), FREE], (26, 0)),
        # a BestEffort pod
        (FREE, Resources(), [FREE, FREE], (1, 0)),
        # exclusive CPUs: no quota at all
        (limited(-1, 2048), Resources(), [limited(-1, 2048)], (512, 0)),
        (limited(-1, 2048), Resources(), [limited(50_000, 2048)], (512, 0)),
        # a caller that describes its containers alone
        (Resources(), Resources(), [limited(50_000, 512), limited(20_000, 256)], (192, 80)),
        (Resources(), Resources(), [limited(50_000, 512), FREE], (128, 0)),
        (Resources(), limited(5_000, 51), [limited(50_000, 512)], (141, 55)),
        (limited(2**60, 2), Resources(), [], (1, 102_400)),
    ],
)
def test_zone_share_follows_from_pod_and_containers(
    pod: Resources, overhead: Resources, containers: list[Resources], expected: tuple[int, int]
) -> None:
    linux = cri.LinuxPodSandboxConfig(resources=pod, overhead=overhead)
    assert zone_shares(linux, containers, OVERHEAD) == ZoneShares(*expected)


def share(resources: pb.ZoneResources) -> tuple[int, int]:
    assert resources.HasField("weight") and resources.HasField("cap")
    return resources.weight, resources.cap


def told(node: Rig) -> list[tuple[int, int]]:
    """Requests to protectd since the pod was made."""
    return [share(request.resources) for request in node.protect.resizes]


async def pod(node: Rig, resources: Resources) -> str:
    return await node.pod(linux=cri.LinuxPodSandboxConfig(resources=resources))


async def container(node: Rig, pod_id: str, name: str, resources: Resources) -> str:
    return await node.started(pod_id, name, linux=cri.LinuxContainerConfig(resources=resources))


async def test_a_zone_begins_with_its_pods_share(node: Rig) -> None:
    made = await pod(node, limited(50_000, 512))
    assert share(node.protect.zone_requests[made].resources) == (128, 60)
    await container(node, made, "one", limited(50_000, 512))
    assert told(node) == [], "it has it already"


async def test_the_containers_count_where_the_pod_says_nothing(node: Rig) -> None:
    made = await pod(node, Resources())
    assert share(node.protect.zone_requests[made].resources) == (256, 0)
    one = await container(node, made, "one", limited(50_000, 512))
    await container(node, made, "two", limited(30_000, 256))
    await node.protect.exit(one, 0, "Completed")
    await until(lambda: not node.daemon.records.containers.get(one).live)
    await container(node, made, "three", limited(30_000, 256))
    assert told(node) == [(128, 60), (192, 90), (128, 70)]


async def test_an_init_container_without_a_limit_lifts_the_cap_for_its_time(node: Rig) -> None:
    made = await pod(node, limited(50_000, 512))
    first = await container(node, made, "first", FREE)
    await node.protect.exit(first, 0, "Completed")
    await until(lambda: not node.daemon.records.containers.get(first).live)
    await container(node, made, "main", limited(50_000, 512))
    assert told(node) == [(128, 0), (128, 60)]


async def test_a_failed_container_does_not_count(node: Rig) -> None:
    made = await pod(node, Resources())
    node.protect.failures["CreateWorkload"] = Unreachable("create workload", "w", "no")
    with pytest.raises(grpc.aio.AioRpcError):
        await container(node, made, "one", limited(50_000, 512))
    assert told(node) == [(128, 60), (256, 0)]


async def test_updates_of_containers_and_of_the_pod(node: Rig) -> None:
    made = await pod(node, Resources())
    one = await container(node, made, "one", limited(50_000, 512))
    await node.cri.UpdateContainerResources(
        cri.UpdateContainerResourcesRequest(container_id=one, linux=limited(20_000, 1024))
    )
    assert told(node)[1:] == [(256, 30)]
    await node.cri.UpdatePodSandboxResources(
        cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=made, resources=limited(80_000, 2048))
    )
    assert told(node)[2:] == [(512, 90)]
    node.protect.not_done = ["memory: too much"]
    with pytest.raises(grpc.aio.AioRpcError):
        await node.cri.UpdatePodSandboxResources(
            cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=made, resources=limited(10_000, 2))
        )
    node.protect.not_done = []
    await container(node, made, "two", limited(20_000, 2))
    assert told(node)[4:] == [], "what was refused is not remembered"


async def test_lost_shares_are_sent_again(node: Rig) -> None:
    made = await pod(node, Resources())
    one = await container(node, made, "one", limited(50_000, 512))
    node.protect.failures["ResizeZone"] = Unreachable("resize zone", made, "away")
    request = cri.UpdateContainerResourcesRequest(container_id=one, linux=limited(20_000, 512))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.UpdateContainerResources(request)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    node.protect.failures.clear()
    await node.cri.UpdateContainerResources(request)
    assert told(node) == [(128, 60), (128, 30)]


async def test_a_restarted_daemon_sends_shares_once(tmp_path: Path) -> None:
    """The daemon may have died between its record and protectd's."""
    async with rig(tmp_path) as node:
        made = await pod(node, limited(50_000, 512))
        await container(node, made, "one", FREE)
    async with rig(tmp_path, node.protect, node.network, node.images) as node:
        await until(lambda: len(told(node)) == 2)
        assert told(node)[-1] == (128, 0)
        await container(node, made, "two", limited(50_000, 512))
        assert len(told(node)) == 2


@pytest.mark.parametrize(
    ("figures", "said"), [({"cpu_shares": -1}, "cpu_shares -1"), ({"cpu_period": 999}, "cpu_period 999")]
)
@pytest.mark.parametrize("part", ["resources", "overhead"])
async def test_impossible_figures_are_refused(
    node: Rig, part: str, figures: dict[str, int], said: str
) -> None:
    wrong: dict[str, Any] = {part: Resources(**figures)}  # type: ignore[arg-type]
    made = await node.pod()
    with pytest.raises(grpc.aio.AioRpcError) as updated:
        await node.cri.UpdatePodSandboxResources(
            cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=made, **wrong)
        )
    config = pod_config("other", linux=cri.LinuxPodSandboxConfig(**wrong))
    with pytest.raises(grpc.aio.AioRpcError) as run:
        await node.cri.RunPodSandbox(cri.RunPodSandboxRequest(config=config))
    for raised in (updated, run):
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert said in (raised.value.details() or "")
