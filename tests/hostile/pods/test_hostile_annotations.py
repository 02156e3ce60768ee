"""A tenant annotates its pod to take more of the node than its limits say."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
import grpc.aio
import pytest

from cri.config import ANNOTATIONS, HandlerConfig
from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.cri.stage import Stage, StageSettings
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as protect
from xenpod_proto.protect.v1 import reservations_pb2 as rpb
from xenpod_proto.protect.v1 import reservations_pb2_grpc as reservations

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

MIB, GIB = 1 << 20, 1 << 30
MEMORY, VCPUS = "xenpod.dev/memory", "xenpod.dev/vcpus"
SMALL = cri.LinuxContainerResources(memory_limit_in_bytes=64 * MIB, cpu_quota=50_000, cpu_period=100_000)


@pytest.fixture(scope="module")
def stage_settings() -> StageSettings:
    """Zones may have 20 GiB together; a handler lets pods choose their size within bounds."""
    bounds = {"memory_max": "512MiB", "vcpus_max": 2}
    handlers = {"sized": {"annotations": [MEMORY, VCPUS], **bounds}}
    return StageSettings({"handlers": handlers}, {"fake": {"memory": "20GiB"}})


@pytest.fixture
def node(stage: Stage) -> CriNode:
    return stage.node


def _pod(
    name: str, annotations: Mapping[str, str] | None = None, resources: cri.LinuxContainerResources = SMALL
) -> cri.PodSandboxConfig:
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=name, namespace="default"),
        annotations=annotations or {},
        linux=cri.LinuxPodSandboxConfig(resources=resources),
    )


async def _run(client: Client, config: cri.PodSandboxConfig, handler: str = "") -> str:
    request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
    return str((await client.runtime.RunPodSandbox(request, timeout=60)).pod_sandbox_id)


async def _denied(client: Client, config: cri.PodSandboxConfig, handler: str = "") -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _run(client, config, handler)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert await client.pods() == []
    return str(caught.value.details())


async def test_a_small_pod_does_not_take_the_node(node: CriNode) -> None:
    async with node.client() as client:
        said = await _denied(client, _pod("thief", {MEMORY: "18Gi"}))
        assert MEMORY in said and "handlers.xenpod.annotations" in said
        said = await _denied(client, _pod("thief", {VCPUS: "64"}))
        assert VCPUS in said and "handlers.xenpod.annotations" in said
        large = cri.LinuxContainerResources(memory_limit_in_bytes=4 * GIB)
        await client.remove_pod(await _run(client, _pod("next-tenant", resources=large)))


async def test_annotation_outside_of_its_handlers_list_is_refused(node: CriNode) -> None:
    """The pod has no limits that would stop the annotation; the annotation may not lower anything either."""
    async with node.client() as client:
        for handler, listed in (("", HandlerConfig().annotations), ("sized", (MEMORY, VCPUS))):
            for key in set(ANNOTATIONS) - set(listed):
                pod = _pod("thief", {key: "1Mi"}, cri.LinuxContainerResources())
                said = await _denied(client, pod, handler)
                assert f"the annotation {key} is not allowed to pods of runtime handler" in said


@pytest.mark.parametrize(
    ("key", "value", "most"),
    [(MEMORY, "18Gi", "more than the 160 MiB"), (VCPUS, "2", "more than the 1")],
)
async def test_where_limits_exist_an_annotation_only_lowers(
    node: CriNode, key: str, value: str, most: str
) -> None:
    async with node.client() as client:
        said = await _denied(client, _pod("thief", {key: value}), "sized")
        assert key in said and most in said
        async with node.protectd.daemon.channel() as link:
            lowered = await _run(client, _pod("modest", {MEMORY: "100Mi", VCPUS: "1"}), "sized")
            zone = await protect.ZonesStub(link).GetZone(pb.GetZoneRequest(id=lowered), timeout=60)
        assert (zone.resources.memory_bytes, zone.resources.vcpus) == (100 * MIB, 1)
        await client.remove_pod(lowered)


@pytest.mark.parametrize(
    ("key", "value", "bound"),
    [(MEMORY, "18Gi", "handlers.sized.memory_max"), (VCPUS, "3", "handlers.sized.vcpus_max")],
)
async def test_without_limits_the_handlers_bounds_hold(
    node: CriNode, key: str, value: str, bound: str
) -> None:
    async with node.client() as client:
        said = await _denied(client, _pod("thief", {key: value}, cri.LinuxContainerResources()), "sized")
        assert key in said and bound in said
        fits = _pod("modest", {MEMORY: "512Mi", VCPUS: "2"}, cri.LinuxContainerResources())
        await client.remove_pod(await _run(client, fits, "sized"))


@pytest.mark.parametrize(
    ("claimed", "numbers"),
    [
        ({"memory_bytes": 4 * GIB}, ("4096 MiB of memory", "512 MiB", "memory_max")),
        ({"memory_bytes": 256 * MIB, "vcpus": 3}, ("3 vCPUs", "at most 2", "vcpus_max")),
    ],
)
async def test_a_claim_stays_inside_the_handlers_bounds(
    node: CriNode, claimed: Mapping[str, int], numbers: tuple[str, ...]
) -> None:
    async with node.client() as client, node.protectd.daemon.channel() as link:
        stub = reservations.ReservationsStub(link)
        fits = {"memory_bytes": 512 * MIB, "vcpus": 2}
        for name, size in (("thief", claimed), ("modest", fits)):
            make = rpb.MakeReservationRequest(id=f"claim-{name}", pod_uids=[name], **size)  # type: ignore[arg-type]
            await stub.MakeReservation(make, timeout=60)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _run(client, _pod("thief"), "sized")
        said = str(caught.value.details())
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "claim-thief" in said and all(number in said for number in numbers)
        assert await client.pods() == []
        zones = protect.ZonesStub(link)
        assert not (await zones.ListZones(pb.ListZonesRequest(), timeout=60)).zones
        pod = await _run(client, _pod("modest"), "sized")
        found = (await zones.GetZone(pb.GetZoneRequest(id=pod), timeout=60)).resources
        assert (found.memory_bytes, found.vcpus) == (512 * MIB, 2)
        await client.remove_pod(pod)
        for name in ("thief", "modest"):
            await stub.ReleaseReservation(rpb.ReleaseReservationRequest(id=f"claim-{name}"), timeout=60)
