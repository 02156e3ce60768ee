"""The driver as its DaemonSet: a pod in containerd, with our shipped rights and mounts."""

from __future__ import annotations

import asyncio
import functools
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cluster.dra.slices.document import devices
from tests.support.cluster import mixed as support
from tests.support.cluster.api import PATIENCE, Object
from tests.support.cluster.claims import (
    CLAIMS,
    DRIVER,
    SLICES,
    TEMPLATES,
    Driver,
    instance,
    request,
    template,
)
from tests.support.cluster.cluster import NODE, NODES, PODS
from tests.support.cluster.mixed import MixedCluster
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import IMAGE, needs_node
from tests.support.delegate.containerd import needs_containerd
from tests.support.manifests.applied import applied
from tests.support.manifests.sources import NAMESPACE, SHIPPED, generate, read
from tests.support.protect.daemons import ROOT
from tests.support.waiting import until

pytestmark = [
    pytest.mark.root,
    needs_node,
    needs_kubernetes,
    needs_containerd,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]

DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
ITS_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NAME = "xenpod-dra"
LIMITS = {"resources": {"limits": {"memory": "64Mi"}, "requests": {"memory": "1Mi"}}}
CODE = tuple(dict.fromkeys(("/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(ROOT))))
"""Folders of this host with Python, its libraries and our checkout, in place of the image's folders."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mixed() -> AsyncIterator[MixedCluster]:
    """A cluster with RBAC; the folder has a short name, since the driver's sockets have long names."""
    with tempfile.TemporaryDirectory(prefix="x") as folder:
        async with support.mixed_cluster(Path(folder), "RBAC") as made:
            label = {"metadata": {"labels": {"xenpod.dev/zones": "true"}}}
            await made.cluster.api.patch(f"{NODES}/{NODE}", label)
            yield made


def objects(mixed: MixedCluster) -> list[Object]:
    """The driver's objects, with the places of this node and without an image of its own."""
    found = read(generate(*SHIPPED, "driver"))
    (settings,) = [one for one in found if one["kind"] == "ConfigMap"]
    (daemon_set,) = [one for one in found if one["kind"] == "DaemonSet"]
    kubelet = str(mixed.cluster.folder / "root")
    settings["data"]["dra.toml"] = settings["data"]["dra.toml"].replace("/var/lib/kubelet", kubelet)
    _place(daemon_set["spec"]["template"]["spec"], mixed, kubelet)
    return found


def _place(spec: Object, mixed: MixedCluster, kubelet: str) -> None:
    (container,) = spec["containers"]
    for volume in spec["volumes"]:
        if path := volume.get("hostPath"):
            path["path"] = path["path"].replace("/var/lib/kubelet", kubelet)
            path["path"] = path["path"].replace("/run/protect", str(mixed.cluster.node.protectd.run_dir))
    for mount in container["volumeMounts"]:
        mount["mountPath"] = mount["mountPath"].replace("/var/lib/kubelet", kubelet)
    for number, path in enumerate(CODE):
        spec["volumes"].append({"name": f"code-{number}", "hostPath": {"path": path}})
        at = {"name": f"code-{number}", "mountPath": path, "readOnly": True}
        container["volumeMounts"].append(at)
    container["image"] = IMAGE
    container["command"] = [str(Path(sys.prefix) / "bin" / NAME)]
    # Without a kube-proxy the API server is on loopback, not at the address of its service.
    spec["hostNetwork"] = True
    server = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(mixed.cluster.api.port)}
    container["env"] += [{"name": name, "value": value} for name, value in server.items()]
    # The folders of the test are longer than /var/lib/kubelet, and names of sockets have at most 107 bytes.
    (uid,) = [one for one in container["env"] if one["name"] == "POD_UID"]
    uid["valueFrom"]["fieldRef"]["fieldPath"] = "metadata.name"


@pytest_asyncio.fixture(loop_scope="module")
async def driver(mixed: MixedCluster) -> AsyncIterator[Driver]:
    """The driver of the DaemonSet; the test's questions go to the API server and to protectd."""
    api = mixed.cluster.api
    async with applied(api, objects(mixed)):
        await api.post(TEMPLATES, template("each", request("256Mi")))
        try:
            await api.until(SLICES, f"spec.driver={DRIVER}", lambda _: True)
            yield instance(mixed.cluster)
        finally:
            await mixed.cluster.tidy()
            await api.delete(CLAIMS)
            await api.delete(f"{TEMPLATES}/each")
    await until(functools.partial(has_no_pod, mixed), PATIENCE)
    await api.delete(f"{SLICES}?fieldSelector=spec.driver={DRIVER}")


async def has_no_pod(mixed: MixedCluster) -> bool:
    return not await its_pods(mixed)


async def its_pods(mixed: MixedCluster) -> list[str]:
    """The names of the driver's pods, ending pods included."""
    found = await mixed.cluster.api.get(f"{ITS_PODS}?labelSelector=app.kubernetes.io/name%3D{NAME}")
    return [one["metadata"]["name"] for one in found["items"]]


async def create(mixed: MixedCluster, name: str) -> None:
    claims = [{"name": "zone", "resourceClaimTemplateName": "each"}]
    await mixed.zone(name, "sleep", "1000", container=LIMITS, resourceClaims=claims)


async def reserved(mixed: MixedCluster, driver: Driver, *names: str) -> None:
    """Each pod's zone is made from the reservation of its claim, and no other reservation exists."""
    await driver.agree()
    uids = [(await mixed.cluster.api.get(f"{PODS}/{name}"))["metadata"]["uid"] for name in names]
    found = (await driver.reservations()).values()
    assert sorted(list(one.pod_uids) for one in found) == sorted([uid] for uid in uids)
    assert {one.zone_id for one in found} == {zone.id for zone in await mixed.cluster.zones()}


def _rolled_out(generation: int, found: Any) -> bool:
    status = found["status"]
    counts = [status.get(one) for one in ("updatedNumberScheduled", "numberAvailable")]
    return bool(status.get("observedGeneration", 0) >= generation and counts == [1, 1])


async def test_daemon_set_reserves_claimed_memory_and_its_update_loses_nothing(
    mixed: MixedCluster, driver: Driver
) -> None:
    api = mixed.cluster.api
    (first,) = await its_pods(mixed)
    await create(mixed, "before")
    await mixed.cluster.started("before")
    await reserved(mixed, driver, "before")
    slice_ = await driver.slice()

    note = {"metadata": {"annotations": {"example.com/update": "1"}}}
    changed = await api.patch(f"{DAEMON_SETS}/{NAME}", {"spec": {"template": note}})
    await create(mixed, "during")
    generation = changed["metadata"]["generation"]
    await api.until(DAEMON_SETS, f"metadata.name={NAME}", lambda one: _rolled_out(generation, one))
    async with asyncio.timeout(PATIENCE):
        while first in await its_pods(mixed):  # noqa: ASYNC110 - the last pod ends after the start of the next
            await asyncio.sleep(0.1)
    await create(mixed, "after")
    await mixed.cluster.started("before", "during", "after")
    await reserved(mixed, driver, "before", "during", "after")
    after = await driver.slice()
    assert after["metadata"]["uid"] == slice_["metadata"]["uid"], "it was never removed"
    assert [one["name"] for one in devices(after)] == [one["name"] for one in devices(slice_)]
