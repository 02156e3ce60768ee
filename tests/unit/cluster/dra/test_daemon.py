"""The whole driver over its sockets: a kubelet's calls, protectd's reservations, the API server's slice."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.dra.config import DraConfig
from cluster.dra.daemon import serve_dra
from cluster.dra.slices.document import devices
from daemonkit.config import Seconds
from daemonkit.quantity import whole
from protect.config import HostConfig, NamedDevice
from protect.model.capacity.host_resources import Capabilities
from tests.support.dra.api_server import Cluster, serving
from tests.support.dra.kubelet import HEALTHS, TIMEOUT, DraKubelet, kubelet
from tests.support.labels.api_server import NAME, kubeconfig
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import Served, served
from tests.support.waiting import until
from xenpod_proto.kubelet import health_v1_pb2
from xenpod_proto.protect.v1 import protect_pb2
from xenpod_proto.protect.v1 import reservations_pb2 as rpb

DRIVER = "zones.xenpod.dev"
MIB = 1 << 20
_ids = itertools.count(1)


@dataclass
class DraNode:
    cluster: Cluster
    kubelet: DraKubelet
    protectd: Served
    config: DraConfig

    def claim(self, size: str = "512Mi", *pods: str, **result: object) -> tuple[str, str]:
        """Make an allocated claim: its name and uid."""
        number = next(_ids)
        name, uid = f"claim-{number}", f"uid-{number}"
        allocated = {
            "request": "zone",
            "driver": DRIVER,
            "pool": NAME,
            "device": "memory",
            "shareID": f"share-{number}",
            "consumedCapacity": {"memory": size},
        }
        self.cluster.claims[f"default/{name}"] = {
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "status": {
                "allocation": {"devices": {"results": [allocated | result]}},
                "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
            },
        }
        return name, uid

    async def reserved(self) -> dict[str, int]:
        """Bytes by claim, with the domains' own."""
        answer = await self.protectd.clients.reservations.ListReservations(
            rpb.ListReservationsRequest(), timeout=TIMEOUT
        )
        return {one.id: one.memory_bytes + one.overhead_bytes for one in answer.reservations}


@contextlib.asynccontextmanager
async def driving(config: DraConfig) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.ensure_future(serve_dra(config, stop))
    try:
        yield
    finally:
        stop.set()
        await task


@pytest.fixture
async def node(short_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[DraNode]:
    """4096 MiB are for zones."""
    async with driven(short_path, toolstack, Cluster()) as made:
        yield made


@pytest.fixture
async def splitting(short_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[DraNode]:
    """A cluster without shared devices."""
    async with driven(short_path, toolstack, Cluster(("v1beta1",), consumable=False)) as made:
        yield made


@contextlib.asynccontextmanager
async def driven(
    short_path: Path, toolstack: MemoryToolstack, cluster: Cluster, host: HostConfig | None = None
) -> AsyncIterator[DraNode]:
    toolstack.overhead = 8 * MIB
    with serving(cluster) as url:
        config = DraConfig(
            node=NAME,
            kubeconfig=kubeconfig(short_path / "kubeconfig", url),
            protect_socket=short_path / "protect.sock",
            plugins_dir=short_path / "p",
            registry_dir=short_path / "r",
            write_interval=Seconds(0.001),
            split_interval=Seconds(0.001),
        )
        async with served(short_path, toolstack, host) as protectd, driving(config), kubelet(config) as asked:
            yield DraNode(cluster, asked, protectd, config)


async def published(node: DraNode, size: int) -> None:
    await until(lambda: node.cluster.slices and memory_of(node) == size, TIMEOUT)


def memory_of(node: DraNode) -> int:
    return whole(devices(node.cluster.slice)[0]["capacity"]["memory"]["value"])


async def test_driver_registers_with_its_name_and_api_versions(node: DraNode) -> None:
    info = node.kubelet.info
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(node.config.plugin_socket))
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]
    await node.kubelet.registered()
    await node.kubelet.registered("another driver has that name")


async def test_published_devices_have_attributes_of_the_host(
    short_path: Path, toolstack: MemoryToolstack
) -> None:
    toolstack.can = Capabilities(hvm=True, hap=True, hypervisor_version="4.17", numa_nodes=2)
    async with driven(short_path, toolstack, Cluster()) as node:
        await published(node, 4096 * MIB)
        said = devices(node.cluster.slice)[0]["attributes"]
    expected = {"numaNodes": {"int": 2}, "hypervisorVersion": {"string": "4.17"}, "pvh": {"bool": True}}
    assert expected.items() <= said.items()
    assert said["iommu"] == {"bool": False}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_claim_is_prepared_and_unprepared(node: DraNode, version: str) -> None:
    claim = node.claim("512Mi", "pod-1")
    for _ in range(2):
        answer = (await node.kubelet.prepare(claim, version=version))[claim[1]]
        assert answer.error == ""
        (device,) = answer.devices
        assert (list(device.request_names), device.pool_name, device.device_name) == (
            ["zone"],
            NAME,
            "memory",
        )
        assert not device.cdi_device_ids
        if version == "v1":
            assert device.share_id.startswith("share-")
        assert await node.reserved() == {claim[1]: 512 * MIB}
    node.cluster.claims.clear()
    for _ in range(2):
        answer = await node.kubelet.unprepare(claim, version=version)
        assert answer[claim[1]].error == ""
    assert await node.reserved() == {}


async def test_bad_claim_does_not_fail_other_claims_of_the_call(node: DraNode) -> None:
    good = node.claim("1Gi")
    bad = {
        "another uid": ("claim-x", "uid-x"),
        "no such claim": ("claim-y", "uid-y"),
        "is of pool node-2": node.claim(pool="node-2"),
        "nothing of driver": node.claim(driver="gpu.example"),
        "no quantity": node.claim("plenty"),
        "RESOURCE_EXHAUSTED|are free|free": node.claim("64Gi"),
    }
    node.cluster.claims["default/claim-x"] = copy.deepcopy(node.cluster.claims[f"default/{good[0]}"])
    answers = await node.kubelet.prepare(good, *bad.values())
    assert answers[good[1]].error == ""
    for cause, (_, uid) in bad.items():
        assert not answers[uid].devices
        assert any(one in answers[uid].error for one in cause.split("|")), (cause, answers[uid].error)
    assert await node.reserved() == {good[1]: 1 << 30}


async def test_a_node_is_filled_and_not_overfilled(node: DraNode) -> None:
    claims = [node.claim("512Mi") for _ in range(9)]
    answers = await node.kubelet.prepare(*claims)
    refused = [uid for _, uid in claims if answers[uid].error]
    assert len(refused) == 1 and len(await node.reserved()) == 8
    first = next(claim for claim in claims if claim[1] not in refused)
    await node.kubelet.unprepare(first)
    again = next(claim for claim in claims if claim[1] in refused)
    assert (await node.kubelet.prepare(again))[again[1]].error == ""


async def test_only_zones_without_a_claim_change_the_slice(node: DraNode) -> None:
    await published(node, 4096 * MIB)
    device = devices(node.cluster.slice)[0]["name"]
    await node.kubelet.prepare(node.claim("1Gi", "pod-1", device=device))
    await node.protectd.create_zone("z1")  # of a pod without a claim
    request = protect_pb2.GetZoneRequest(id="z1")
    zone = await node.protectd.clients.zones.GetZone(request, timeout=TIMEOUT)
    taken = node.protectd.toolstack.overhead + zone.resources.memory_bytes
    await published(node, (4096 * MIB - taken) // MIB * MIB)
    assert len(node.cluster.writes) == 2


async def test_a_claim_with_an_exclusive_device_is_prepared(splitting: DraNode) -> None:
    """As a cluster of 1.32 has it: the size is in the claim's parameters, the next device in the slice."""
    node = splitting
    await published(node, 4096 * MIB)
    first = devices(node.cluster.slice)[0]["name"]
    claim = node.claim(device=first, consumedCapacity=None, shareID=None)
    assert (await node.kubelet.prepare(claim, version="v1beta1"))[claim[1]].error == ""
    assert await node.reserved() == {claim[1]: 352 * MIB}
    await published(node, (4096 - 352) * MIB)
    found = {one["name"]: one["attributes"]["claimed"]["bool"] for one in devices(node.cluster.slice)}
    assert found.pop(first) is True and list(found.values()) == [False]
    await node.kubelet.unprepare(claim, version="v1beta1")
    await published(node, 4096 * MIB)
    assert [one["name"] for one in devices(node.cluster.slice)] == list(found)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_claim_of_a_device_gives_its_pod_a_cdi_name_and_its_zone_the_device(
    short_path: Path, toolstack: MemoryToolstack, version: str
) -> None:
    host = HostConfig(devices={"card": NamedDevice("/dev/null")})  # a device of every host
    async with driven(short_path, toolstack, Cluster(), host) as node:
        await published(node, 4096 * MIB)
        _, card = devices(node.cluster.slice)
        claim = node.claim("512Mi", "pod-1", device=card["name"], consumedCapacity=None, shareID=None)
        for _ in range(2):
            answer = (await node.kubelet.prepare(claim, version=version))[claim[1]]
            assert answer.error == ""
            assert list(answer.devices[0].cdi_device_ids) == ["xenpod.dev/device=card"]
        other = node.claim("512Mi", "pod-2", device=card["name"], consumedCapacity=None, shareID=None)
        assert "has device card" in (await node.kubelet.prepare(other))[other[1]].error
        await node.protectd.create_zone("z1", pod_uid="pod-1")
        assert [str(one.path) for one in toolstack.of_zone("z1").disks.values() if one.exclusive] == [
            "/dev/null"
        ]


async def test_refusals_are_events(node: DraNode) -> None:
    claim = node.claim("64Gi", "pod-1")
    error = (await node.kubelet.prepare(claim))[claim[1]].error
    await until(lambda: len(node.cluster.events) >= 2, TIMEOUT)
    assert {one["regarding"]["kind"] for one in node.cluster.events} == {"ResourceClaim", "Pod"}
    assert {one["note"] for one in node.cluster.events} == {error}


@pytest.mark.parametrize("version", HEALTHS)
async def test_the_health_of_the_device_is_reported(node: DraNode, version: str) -> None:
    await published(node, 4096 * MIB)
    watch = node.kubelet.health(version)
    async with asyncio.timeout(TIMEOUT):
        async for said in watch:
            if said.devices:
                break
    (device,) = said.devices
    assert device.health == HEALTHS[version][0].HEALTHY
    assert device.device.pool_name == NAME
    assert device.device.device_name == devices(node.cluster.slice)[0]["name"]
    watch.cancel()


async def test_lost_memory_of_a_host_taints_its_devices(node: DraNode) -> None:
    """Another domain takes memory promised to a claim, and gives it back."""
    toolstack = node.protectd.toolstack
    await published(node, 4096 * MIB)
    claim = node.claim("4Gi", "pod-1", device=devices(node.cluster.slice)[0]["name"])
    assert (await node.kubelet.prepare(claim))[claim[1]].error == ""
    watch = node.kubelet.health("v1")
    for foreign, taint, health in (
        (toolstack.host_memory - (3 << 30), "memory-lost", health_v1_pb2.UNHEALTHY),
        (0, "", health_v1_pb2.HEALTHY),
    ):
        toolstack.foreign_memory = foreign
        # the driver looks again
        await node.protectd.clients.host.Info(protect_pb2.InfoRequest(), timeout=TIMEOUT)
        async with asyncio.timeout(TIMEOUT):
            async for said in watch:
                if [one.health for one in said.devices] == [health]:
                    break
            await until(lambda taint=taint: value(node) == taint)
        assert (said.devices[0].message, await node.reserved()) == (taint, {claim[1]: 4096 * MIB})
    watch.cancel()


def value(node: DraNode) -> str:
    """The value of the first device's taint; "" without a taint."""
    (taint,) = devices(node.cluster.slice)[0].get("taints") or [{"value": ""}]
    return str(taint["value"])


async def test_restarts_of_the_driver_lose_and_double_nothing(node: DraNode) -> None:
    """A second instance begins before the first ends, as in a rolling update."""
    await published(node, 4096 * MIB)
    claim = node.claim("512Mi", device=devices(node.cluster.slice)[0]["name"])
    await node.kubelet.prepare(claim)
    other = DraConfig(
        node=NAME,
        kubeconfig=node.config.kubeconfig,
        protect_socket=node.config.protect_socket,
        plugins_dir=node.config.plugins_dir,
        registry_dir=node.config.registry_dir,
        instance="b",
    )
    async with driving(other), kubelet(other) as second:
        assert (await second.prepare(claim))[claim[1]].error == ""
        assert await node.reserved() == {claim[1]: 512 * MIB}
        await second.unprepare(claim)
    assert await node.reserved() == {}
    assert len(node.cluster.writes) == 1
