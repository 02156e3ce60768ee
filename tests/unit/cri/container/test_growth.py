"""Growth of zones, and its causes: handlers, updates of containers and of pods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from cri.config import HandlerConfig, HandlerMemoryPolicy, Reserve
from cri.container.growth import needed
from daemonkit.config import Bytes
from daemonkit.convert import WrongKey
from tests.support.cri.cri_node import Rig, node_config, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

MIB = 1 << 20
Resources = cri.LinuxContainerResources
GROWS = HandlerConfig(
    memory=Bytes(128 * MIB), memory_headroom=Bytes(256 * MIB), vcpus_headroom=2, cpupool="guests"
)


def limited(memory: int = 0, milli: int = 0) -> Resources:
    return Resources(
        memory_limit_in_bytes=memory * MIB, cpu_quota=100 * milli, cpu_period=100_000 if milli else 0
    )


async def asked(folder: Path, handler: HandlerConfig, limit: Resources) -> pb.CreateZoneRequest:
    config = replace(node_config(folder), handlers={"xenpod": handler})
    async with rig(folder, config=config) as node:
        pod = await node.pod(linux=cri.LinuxPodSandboxConfig(resources=limit))
        request: pb.CreateZoneRequest = node.protect.zone_requests[pod]
        return request


async def test_headroom_of_the_handler_reaches_the_zone_request(tmp_path: Path) -> None:
    request = await asked(tmp_path, GROWS, limited(100, 1500))
    made = request.resources
    overhead = node_config(tmp_path).zone.memory_overhead // MIB
    assert (made.memory_bytes // MIB, made.vcpus) == (100 + overhead, 2)
    assert (made.memory_headroom_bytes // MIB, made.vcpus_headroom) == (256, 2)
    assert made.memory_policy == pb.MEMORY_POLICY_STATIC
    assert request.cpupool == "guests"


async def test_headroom_ends_at_the_handlers_bounds(tmp_path: Path) -> None:
    bounded = replace(GROWS, memory_max=Bytes(300 * MIB), vcpus_max=3)
    made = (await asked(tmp_path, bounded, limited(0, 2000))).resources
    assert (made.memory_bytes // MIB, made.memory_headroom_bytes // MIB) == (128, 172)
    assert (made.vcpus, made.vcpus_headroom) == (2, 1)


@pytest.mark.parametrize(("limit", "begin", "grows"), [(0, 128, 256), (1000, 128, None), (1, None, 256)])
async def test_a_zone_with_reserve_request_begins_small(
    tmp_path: Path, limit: int, begin: int | None, grows: int | None
) -> None:
    """``reserve = "request"``: the handler's memory at first, and the pod's limit when an update uses it."""
    handler = replace(GROWS, reserve=Reserve.REQUEST)
    made = (await asked(tmp_path, handler, limited(limit))).resources
    size = limit + node_config(tmp_path).zone.memory_overhead // MIB if limit else 128
    assert made.memory_bytes // MIB == (begin or size)
    assert made.memory_headroom_bytes // MIB == (grows or size - 128 + 256)
    assert made.memory_policy == pb.MEMORY_POLICY_DYNAMIC


def test_reserve_by_request_needs_an_initial_size() -> None:
    with pytest.raises(WrongKey, match="what zones begin with"):
        HandlerConfig(reserve=Reserve.REQUEST)
    with pytest.raises(WrongKey, match="cpupool"):
        HandlerConfig(cpupool="a b")
    assert HandlerConfig().memory_policy is HandlerMemoryPolicy.STATIC


OVERHEAD = 10 * MIB
UNLIMITED = Resources(memory_limit_in_bytes=0x7FFF_FFFF_FFFF_F000)
"""The limit of a cgroup of version 1 without a limit."""
POD = limited(300, 1500)


@pytest.mark.parametrize(
    ("pod", "others", "now", "then", "expected"),
    [
        (POD, [], limited(300, 1500), limited(300, 1500), (0, 0)),
        (POD, [], limited(300, 1500), limited(200, 1000), (0, 0)),
        (POD, [limited(100, 500)], limited(200, 1000), limited(400, 1000), (510, 0)),
        (POD, [limited(100, 500)], limited(200, 1000), limited(200, 1600), (0, 3)),
        # a container without a limit adds nothing
        (POD, [limited(100, 500), limited()], limited(), limited(400, 4000), (0, 0)),
        (POD, [], limited(200, 1000), limited(), (0, 0)),
        (POD, [], limited(200), UNLIMITED, (0, 0)),
        (UNLIMITED, [UNLIMITED, limited(50)], limited(200), limited(300), (360, 0)),
        # each container has its pod's limit
        (POD, [limited(300, 1500)], limited(300, 1500), limited(400, 1700), (410, 2)),
        (POD, [limited(300), limited(500)], limited(300), limited(400), (510, 0)),
        # a caller that describes containers alone
        (Resources(), [limited(100, 500)], limited(200, 1000), limited(250, 1501), (360, 3)),
    ],
)
def test_size_needed_for_a_container_includes_pod_and_overhead(
    pod: Resources, others: list[Resources], now: Resources, then: Resources, expected: tuple[int, int]
) -> None:
    linux = cri.LinuxPodSandboxConfig(resources=pod)
    wanted = needed(linux, others, now, then, OVERHEAD)
    assert (wanted.memory_bytes // MIB, wanted.vcpus) == expected
    linux.overhead.memory_limit_in_bytes = 77 * MIB
    again = needed(linux, others, now, then, OVERHEAD)
    assert again.memory_bytes // MIB == (expected[0] + 67 if expected[0] else 0)


async def _updated(node: Rig, container: str, limit: Resources) -> None:
    await node.cri.UpdateContainerResources(
        cri.UpdateContainerResourcesRequest(container_id=container, linux=limit)
    )


async def test_the_zone_grows_before_its_container(tmp_path: Path) -> None:
    """The zone does not shrink with its container: the later update of the pod shrinks the zone."""
    async with rig(tmp_path) as node:
        overhead = node.daemon.config.zone.memory_overhead // MIB
        pod = await node.pod(linux=cri.LinuxPodSandboxConfig(resources=limited(200, 1000)))
        linux = cri.LinuxContainerConfig(resources=limited(200, 1000))
        one = await node.started(pod, "one", linux=linux)
        node.protect.calls.clear()
        await _updated(node, one, limited(300, 2000))
        assert node.protect.calls.index("ResizeZone") < node.protect.calls.index("UpdateWorkload")
        first = node.protect.resizes[0]
        assert first.only_more
        assert (first.resources.memory_bytes // MIB, first.resources.vcpus) == (300 + overhead, 2)
        node.protect.resizes.clear()
        await _updated(node, one, limited(100, 500))
        assert [request.resources.memory_bytes for request in node.protect.resizes] in ([], [0])
        await node.cri.UpdatePodSandboxResources(
            cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod, resources=limited(100, 500))
        )
        last = node.protect.resizes[-1]
        assert not last.only_more
        assert (last.resources.memory_bytes // MIB, last.resources.vcpus) == (100 + overhead, 1)


async def test_a_container_beyond_its_zone_keeps_its_limits(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        pod = await node.pod(linux=cri.LinuxPodSandboxConfig(resources=limited(200, 1000)))
        linux = cri.LinuxContainerConfig(resources=limited(200, 1000))
        one = await node.started(pod, "one", linux=linux)
        node.protect.not_done = ["memory: 400 MiB wanted, the zone can have 300 MiB"]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await _updated(node, one, limited(400))
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "the zone can have 300 MiB" in (raised.value.details() or "")
        assert node.protect.updates == []
        kept = node.daemon.records.containers.get(one).config.linux.resources
        assert kept.memory_limit_in_bytes == 200 * MIB


def test_limits_beyond_any_host_are_clamped() -> None:
    """Limits within a message: other containers of the pod and its overhead come on top."""
    most = Resources(memory_limit_in_bytes=2**50, cpu_quota=2**63 - 1, cpu_period=1)
    wanted = needed(cri.LinuxPodSandboxConfig(), [most], limited(64, 100), most, 64 * MIB)
    assert (wanted.memory_bytes, wanted.vcpus) == (2**50, 1024)
