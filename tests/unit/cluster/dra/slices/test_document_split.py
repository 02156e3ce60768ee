"""Clusters whose claims cannot share a device: a device for each claim, and a device for the next claim."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cluster.dra.config import ClaimSizes, DraConfig, SliceMode
from cluster.dra.kube.api import ClusterApi
from cluster.dra.model import HostDevice, Promise, ZoneMemory
from cluster.dra.slices.document import devices
from cluster.dra.slices.keeper import SliceKeeper
from daemonkit.faults import Exists
from daemonkit.quantity import whole
from tests.support.dra.api_server import Cluster, serving
from tests.support.dra.plugin_host import HeldHost
from tests.support.labels.api_server import NAME, kubeconfig

GIB, MIB = 1 << 30, 1 << 20


@dataclass
class Node:
    """A node whose driver can restart; ``held`` are protectd's reservations."""

    cluster: Cluster
    config: DraConfig
    held: list[Promise] = field(default_factory=list)
    named: list[HostDevice] = field(default_factory=list)

    def keeper(self, claimable: int = 4 * GIB) -> SliceKeeper:
        host = HeldHost(self.held, self.named)
        made = SliceKeeper(self.config, ClusterApi(self.config.kubeconfig), host, lambda *_: None)
        made.show(ZoneMemory(16 * GIB, claimable), {})
        return made

    def reserve(self, device: str, size: int, uid: str = "") -> Promise:
        self.held.append(Promise(uid or f"uid-{len(self.held)}", size, (), device))
        return self.held[-1]

    @property
    def unclaimed(self) -> dict[str, int]:
        return self._of(claimed=False)

    @property
    def claimed(self) -> dict[str, int]:
        return self._of(claimed=True)

    @property
    def name(self) -> str:
        """Of the device for the next claim."""
        (name,) = self.unclaimed
        return name

    def _of(self, *, claimed: bool) -> dict[str, int]:
        return {
            one["name"]: whole(one["capacity"]["memory"]["value"])
            for one in devices(self.cluster.slice)
            if one["attributes"].get("claimed") == {"bool": claimed}
        }


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path, Cluster(consumable=False)) as made:
        yield made


@contextlib.contextmanager
def running(folder: Path, cluster: Cluster, **settings: Any) -> Iterator[Node]:
    with serving(cluster) as url:
        path = kubeconfig(folder / "kubeconfig", url)
        yield Node(cluster, DraConfig(node=NAME, kubeconfig=path, **settings))


@pytest.mark.parametrize("versions", [("v1beta2", "v1beta1"), ("v1beta1",)])
async def test_each_claim_has_a_device_and_the_next_claim_too(
    tmp_path: Path, versions: tuple[str, ...]
) -> None:
    with running(tmp_path, Cluster(versions, consumable=False)) as node:
        keeper = node.keeper()
        await keeper.once()
        assert (list(node.unclaimed.values()), node.claimed) == ([4 * GIB], {})
        first = node.name
        node.reserve(first, 512 * MIB)
        keeper.claimed(first)
        await keeper.once()
        second = node.name
        assert second != first
        assert (node.unclaimed, node.claimed) == ({second: 3584 * MIB}, {first: 512 * MIB})
        node.held.clear()
        keeper.released()
        await keeper.once()
        assert (node.unclaimed, node.claimed) == ({second: 4 * GIB}, {})
        await keeper.once()
    assert [write["spec"]["pool"]["generation"] for _, write in node.cluster.writes] == [1, 2, 3]
    assert {version for version, _ in node.cluster.writes} == {versions[0]}


async def test_a_restart_keeps_all_names(node: Node) -> None:
    keeper = node.keeper()
    await keeper.once()
    node.reserve(node.name, GIB)
    await keeper.once()
    before = (node.unclaimed, node.claimed)
    await node.keeper().once()
    assert (node.unclaimed, node.claimed) == before and len(node.cluster.writes) == 2


async def test_a_claimed_device_is_not_offered_again_after_a_restart(node: Node) -> None:
    await node.keeper().once()
    first = node.name
    node.reserve(first, GIB)  # and the driver is killed before it writes the slice
    await node.keeper().once()
    assert node.claimed == {first: GIB} and list(node.unclaimed.values()) == [3 * GIB]
    node.held.clear()  # killed again, before the write about the removed claim
    second = node.name
    await node.keeper().once()
    assert node.unclaimed == {second: 4 * GIB} and node.claimed == {}


async def test_a_refused_claim_does_not_block_the_node(node: Node) -> None:
    keeper = node.keeper()
    await keeper.once()
    refused = node.name
    keeper.claimed(refused)
    assert refused == node.name  # the API server does not take the next write
    node.cluster.slice["metadata"]["resourceVersion"] = "another"
    with pytest.raises(Exists):
        await keeper.once()
    keeper._there = None  # as ``keep`` does after a failure
    await keeper.once()
    assert refused not in node.unclaimed and list(node.unclaimed.values()) == [4 * GIB]


async def test_offers_have_a_minimum_and_with_claims_never_exceed_the_host(
    node: Node,
) -> None:
    keeper = node.keeper()
    seen = set[str]()
    await keeper.once()
    while node.unclaimed:
        (size,) = node.unclaimed.values()
        assert size + sum(node.claimed.values()) <= 4 * GIB
        assert node.name not in seen
        seen.add(node.name)
        node.reserve(node.name, 510 * MIB)
        await keeper.once()
    assert 4 * GIB - sum(node.claimed.values()) < ClaimSizes().minimum_device
    assert seen == set(node.claimed)
    node.held.pop()
    await keeper.once()
    assert node.name not in seen


async def test_the_slice_has_at_most_the_permitted_devices(node: Node) -> None:
    for number in range(200):
        node.reserve(f"memory-{number:08x}", 1 * MIB)
    node.reserve("", 24 * MIB, "an operators")
    await node.keeper().once()
    assert len(devices(node.cluster.slice)) == 64
    assert list(node.unclaimed.values()) == [4 * GIB - 224 * MIB]


async def test_devices_of_the_host_are_offered_beside_memory(node: Node) -> None:
    node.named = [
        HostDevice("card.0", "0000:65:00.0", readonly=False, zone_id=""),
        HostDevice("disk", "", readonly=True, zone_id="z1"),
        HostDevice("taken", "", readonly=False, zone_id="z2"),  # by an annotation
    ]
    node.reserve("", 0, "claim")
    node.held[0] = replace(node.held[0], host_devices=("disk",))
    await node.keeper().once()
    first, *found = devices(node.cluster.slice)
    assert node.unclaimed == {first["name"]: 4 * GIB}
    attributes = [one["attributes"] for one in found]
    assert [one["device"] for one in attributes] == [{"string": "card.0"}, {"string": "disk"}]
    assert [one["kind"] for one in attributes] == [{"string": "device"}] * 2
    assert attributes[0]["resource.kubernetes.io/pciBusID"] == {"string": "0000:65:00.0"}
    assert [one["name"] for one in found] == [one.slice_name(NAME) for one in node.named[:2]]
    for one in found:
        assert re.fullmatch("device-[0-9a-f]{16}", one["name"]) and "capacity" not in one
    node.named = [HostDevice(f"d{number}", "", readonly=False, zone_id="") for number in range(99)]
    for number in range(99):
        node.reserve(f"memory-{number:08x}", 1 * MIB)
    await node.keeper().once()
    assert len(devices(node.cluster.slice)) == 64


async def test_two_instances_agree_on_the_name(node: Node) -> None:
    one, other = node.keeper(), node.keeper()
    await one.once()
    await other.once()
    node.reserve(node.name, GIB)
    await one.once()
    second = node.name
    with pytest.raises(Exists):
        await other.once()
    other._there = None
    await other.once()
    assert node.name == second and len(node.cluster.writes) == 2


async def test_a_cluster_with_new_sharing_counts_nothing_twice(node: Node) -> None:
    keeper = node.keeper()
    await keeper.once()
    node.reserve(node.name, GIB)
    await keeper.once()
    names = {*node.unclaimed, *node.claimed}
    node.cluster.consumable = True
    await node.keeper().once()
    (device,) = devices(node.cluster.slice)
    assert device["name"] not in names and device["allowMultipleAllocations"]
    assert whole(device["capacity"]["memory"]["value"]) == 3 * GIB
    node.reserve(device["name"], GIB)  # the scheduler subtracts this reservation
    await node.keeper().once()
    assert whole(devices(node.cluster.slice)[0]["capacity"]["memory"]["value"]) == 3 * GIB
    node.config = replace(node.config, mode=SliceMode.SPLIT)
    await node.keeper().once()
    assert list(node.unclaimed.values()) == [2 * GIB] and len(node.claimed) == 2


async def test_a_cluster_may_learn_to_share_while_the_driver_runs(node: Node) -> None:
    keeper = node.keeper()
    await keeper.once()
    node.reserve(node.name, GIB)
    await keeper.once()
    names = {*node.unclaimed, *node.claimed}
    node.cluster.consumable = True
    keeper._there = None  # as each check_interval
    await keeper.once()
    (device,) = devices(node.cluster.slice)
    assert device["name"] not in names and device["allowMultipleAllocations"]
    assert whole(device["capacity"]["memory"]["value"]) == 3 * GIB
    node.reserve(device["name"], GIB)  # the scheduler subtracts this reservation
    written = len(node.cluster.writes)
    keeper._there = None
    await keeper.once()
    assert devices(node.cluster.slice) == [device] and len(node.cluster.writes) == written


async def test_the_mode_of_the_configuration_stays(node: Node) -> None:
    node.config = replace(node.config, mode=SliceMode.SPLIT)
    keeper = node.keeper()
    await keeper.once()
    node.cluster.consumable = True
    keeper._there = None
    await keeper.once()
    assert node.unclaimed == {node.name: 4 * GIB}


async def test_a_shared_device_keeps_its_name_when_kubelet_and_driver_restart(tmp_path: Path) -> None:
    """The kubelet removes the slice; the scheduler subtracts the claims' part of the device."""
    with running(tmp_path, Cluster()) as node:
        await node.keeper().once()
        (device,) = devices(node.cluster.slice)
        node.reserve(device["name"], GIB)
        node.cluster.slices.clear()
        await node.keeper().once()
        assert devices(node.cluster.slice) == [device]
