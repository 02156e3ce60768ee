"""The node's slice: its content, and the times of its writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.dra.config import ClaimSizes, DraConfig, SliceMode
from cluster.dra.kube.api import ClusterApi
from cluster.dra.model import ZoneMemory
from cluster.dra.slices import keeper as module
from cluster.dra.slices.document import NodeSlice, SliceVersion, devices, document
from cluster.dra.slices.keeper import SliceKeeper
from cluster.dra.slices.offer import MemoryDevice
from daemonkit.config import Bytes
from daemonkit.faults import Denied, Unreachable, Unsupported
from daemonkit.quantity import whole
from tests.support.dra.api_server import NODE_UID, Cluster, serving
from tests.support.dra.plugin_host import HeldHost
from tests.support.labels.api_server import NAME, kubeconfig
from tests.support.waiting import until

DRIVER = "zones.xenpod.dev"
GIB = 1 << 30
ONE = MemoryDevice("memory-1", 8 * GIB, shared=True)
SLICE = NodeSlice(DRIVER, NAME, NODE_UID, 3, (ONE,), ClaimSizes(), {"pv": True, "toolstack": "libxl"})


@contextlib.contextmanager
def keeping(
    cluster: Cluster,
    folder: Path,
    mode: SliceMode = SliceMode.AUTO,
    **more: float,
) -> Any:
    """A keeper with the real client; ``told`` collects its news of devices."""
    with serving(cluster) as url:
        told: list[tuple[tuple[str, ...], str]] = []
        api = ClusterApi(kubeconfig(folder / "kubeconfig", url))
        quick: Any = {"write_interval": 0.001, "split_interval": 0.001, "check_interval": 60.0, **more}
        config = DraConfig(node=NAME, mode=mode, **quick)

        yield SliceKeeper(config, api, HeldHost(), lambda *what: told.append(what)), told


@contextlib.asynccontextmanager
async def running(keeper: SliceKeeper) -> AsyncIterator[None]:
    task = asyncio.ensure_future(keeper.keep())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def memory(claimable: int, total: int = 16 * GIB) -> ZoneMemory:
    return ZoneMemory(total, claimable)


def said(cluster: Cluster) -> int:
    (device,) = devices(cluster.slice)
    return whole(device["capacity"]["memory"]["value"])


def test_the_slice_of_v1_has_the_device() -> None:
    found = document(SLICE, SliceVersion.V1)
    assert found["spec"]["pool"] == {"name": NAME, "generation": 3, "resourceSliceCount": 1}
    assert found["metadata"]["ownerReferences"][0]["uid"] == NODE_UID
    (device,) = found["spec"]["devices"]
    assert device["allowMultipleAllocations"] is True
    assert device["attributes"] == {
        "kind": {"string": "memory"},
        "pv": {"bool": True},
        "toolstack": {"string": "libxl"},
    }
    assert device["capacity"]["memory"] == {
        "value": "8Gi",
        "requestPolicy": {"default": "352Mi", "validRange": {"min": "32Mi", "max": "8Gi", "step": "1Mi"}},
    }


def test_device_maps_claims_to_memory_of_dom0() -> None:
    (device,) = document(replace(SLICE, dom0_memory=4 << 20), SliceVersion.V1)["spec"]["devices"]
    assert device["nodeAllocatableResourceMappings"] == {"memory": {"allocationMultiplier": "4Mi"}}
    (device,) = document(SLICE, SliceVersion.V1)["spec"]["devices"]
    assert "nodeAllocatableResourceMappings" not in device


@pytest.mark.parametrize("version", SliceVersion)
def test_all_versions_say_the_same(version: SliceVersion) -> None:
    found = document(SLICE, version)
    assert found["apiVersion"] == f"resource.k8s.io/{version.value}"
    assert devices(found) == devices(document(SLICE, SliceVersion.V1))
    assert ("basic" in found["spec"]["devices"][0]) == (version is SliceVersion.V1BETA1)


@pytest.mark.parametrize("claimable", [0, 1 << 20, 33 << 20, 8 * GIB + 5])
def test_claimable_sizes_are_steps_above_the_minimum(claimable: int) -> None:
    sizes = ClaimSizes(step=Bytes(3 << 20), minimum=Bytes(33 << 20), default=Bytes(66 << 20))
    found = NodeSlice(DRIVER, NAME, "", 1, (MemoryDevice("m", claimable, shared=True),), sizes, {})
    (device,) = document(found, SliceVersion.V1)["spec"]["devices"]
    policy = device["capacity"]["memory"]["requestPolicy"]
    least, most = (whole(policy["validRange"][key]) for key in ("min", "max"))
    assert least == sizes.minimum <= whole(policy["default"]) <= most
    assert (most - least) % sizes.step == 0
    assert most <= max(claimable, least)


@pytest.mark.parametrize("versions", [("v1", "v1beta2"), ("v1beta2", "v1beta1"), ("v1beta1",)])
async def test_slice_is_written_in_the_newest_version_and_only_on_changes(
    tmp_path: Path, versions: tuple[str, ...]
) -> None:
    cluster = Cluster(versions)
    with keeping(cluster, tmp_path) as (keeper, told):
        keeper.show(memory(4 * GIB), {"pv": True})
        async with running(keeper):
            await until(lambda: bool(cluster.writes))
            (name,) = (device["name"] for device in devices(cluster.slice))
            assert told[-1] == ((name,), "")
            for claimable in (4 * GIB, 4 * GIB + 100, 4 * GIB):
                keeper.show(memory(claimable), {"pv": True})
            keeper.show(memory(3 * GIB), {"pv": True})
            await until(lambda: said(cluster) == 3 * GIB)
    assert [version for version, _ in cluster.writes] == [versions[0]] * 2
    assert [write["spec"]["pool"]["generation"] for _, write in cluster.writes] == [1, 2]
    assert {device["name"] for _, write in cluster.writes for device in devices(write)} == {name}


async def test_a_restart_writes_nothing_and_keeps_the_name(tmp_path: Path) -> None:
    cluster = Cluster()
    for _ in range(2):
        with keeping(cluster, tmp_path) as (keeper, _told):
            keeper.show(memory(4 * GIB), {})
            await keeper.once()
    assert len(cluster.writes) == 1


async def test_slice_changed_by_others_is_replaced(tmp_path: Path) -> None:
    cluster = Cluster()
    with keeping(cluster, tmp_path) as (keeper, _told):
        keeper.show(memory(4 * GIB), {})
        await keeper.once()
        name = devices(cluster.slice)[0]["name"]
        cluster.slice["spec"]["devices"][0]["capacity"]["memory"]["value"] = "900Gi"
        cluster.slice["metadata"]["resourceVersion"] = "another"
        keeper.show(memory(2 * GIB), {})
        async with running(keeper):  # the first try meets the other's version, the next try reads the version
            await until(lambda: said(cluster) == 2 * GIB)
    assert devices(cluster.slice)[0]["name"] == name


async def test_a_removed_slice_is_written_again(tmp_path: Path) -> None:
    cluster = Cluster()
    with keeping(cluster, tmp_path, check_interval=0.02) as (keeper, _told):
        keeper.show(memory(4 * GIB), {})
        async with running(keeper):
            await until(lambda: bool(cluster.slices))
            cluster.slices.clear()
            await until(lambda: bool(cluster.slices))


@pytest.mark.parametrize("later", [False, True])
async def test_slice_removed_by_the_kubelet_returns_after_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """Also a kubelet that removes the slice after the registration; the driver does not wait for the next
    check.
    """
    monkeypatch.setattr(module, "_SOON", 0.5 if later else 3600.0)
    cluster = Cluster()
    with keeping(cluster, tmp_path, check_interval=3600.0) as (keeper, _):
        keeper.show(memory(8 * GIB), {})
        async with running(keeper):
            await until(lambda: bool(cluster.slices))
            if later:
                keeper.registered()
                await until(lambda: not keeper._wiped)
            cluster.slices.clear()
            if not later:
                keeper.registered()
            await until(lambda: bool(cluster.slices))


async def test_while_protectd_is_away_the_device_takes_no_new_claims(tmp_path: Path) -> None:
    cluster = Cluster()
    with keeping(cluster, tmp_path) as (keeper, told):
        keeper.show(None, {})  # before protectd's first answer nothing is published
        async with running(keeper):
            keeper.show(memory(4 * GIB), {})
            await until(lambda: bool(cluster.slices))
            keeper.show(None, {})
            await until(lambda: "taints" in devices(cluster.slice)[0])
            (device,) = devices(cluster.slice)
            assert device["taints"] == [
                {"key": f"{DRIVER}/unhealthy", "value": "protectd-away", "effect": "NoSchedule"}
            ]
            assert said(cluster) == 4 * GIB
            assert told[-1] == ((device["name"],), "protectd-away")
            keeper.show(memory(4 * GIB), {})
            await until(lambda: "taints" not in devices(cluster.slice)[0])


async def test_fields_dropped_by_the_cluster_are_not_written_again(tmp_path: Path) -> None:
    """Device taints, an optional field: protectd is away, and each failed attempt shows the taints again."""
    cluster = Cluster(taints=False)
    with keeping(cluster, tmp_path) as (keeper, _told):
        keeper.show(memory(4 * GIB), {})
        await keeper.once()
        for _ in range(3):
            keeper.show(None, {})
            await keeper.once()
            keeper._there = None  # the slice is read again now and then
            await keeper.once()
        assert len(cluster.writes) == 2
        cluster.slice["spec"]["devices"][0]["capacity"]["memory"]["value"] = "900Gi"
        cluster.slice["metadata"]["resourceVersion"] = "another"
        keeper._there = None
        await keeper.once()
    assert said(cluster) == 4 * GIB


async def test_a_cluster_without_the_feature_is_named(tmp_path: Path) -> None:
    for cluster, cause in (
        (Cluster(consumable=False), "gate DRAConsumableCapacity, or set the mode"),
        (Cluster(versions=("v1alpha3",)), "the cluster serves v1alpha3"),
        (Cluster(versions=()), "the cluster serves none"),
    ):
        with keeping(cluster, tmp_path, SliceMode.SHARED) as (keeper, _told):
            keeper.show(memory(4 * GIB), {})
            with pytest.raises(Unsupported, match=cause):
                await keeper.once()
        assert cluster.slices == {}


async def test_refusals_of_the_api_server_have_their_kinds(tmp_path: Path) -> None:
    for status, kind in ((403, Denied), (503, Unreachable)):
        cluster = Cluster(refusal=(status, "not now"))
        with keeping(cluster, tmp_path) as (keeper, _told):
            keeper.show(memory(4 * GIB), {})
            with pytest.raises(kind, match="not now"):
                await keeper.once()


async def test_a_failure_is_tried_again(tmp_path: Path) -> None:
    cluster = Cluster(refusal=(503, "starting"))
    with keeping(cluster, tmp_path) as (keeper, _told):
        keeper.show(memory(4 * GIB), {})
        async with running(keeper):
            await asyncio.sleep(0.2)
            cluster.refusal = None
            await until(lambda: bool(cluster.slices))
