"""docs/cluster/dedicated-pool.md: a real scheduler with a pool of zone nodes and a pool for add-ons.

The nodes are objects without a kubelet: a pod counts as placed once bound.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ruamel.yaml import YAML

from cluster.objects.manifests.plans import Critical, fill
from tests.support.cluster.api import PATIENCE, Api, Object
from tests.support.cluster.cluster import PODS
from tests.support.cluster.control_plane import Serving, api_server
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.protect.daemons import ROOT

pytestmark = [needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

NODES = "/api/v1/nodes"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
ZONES = {"xenpod.dev/zones": "true"}
ADDONS = {"xenpod.dev/pool": "addons"}
ROOM = 2
"""Most pods of a node."""

POD = """\
kind: Pod
metadata: {name: zone}
spec:
  runtimeClassName: xenpod
  containers: [{name: main, image: none, resources: {requests: {memory: 256Mi}}}]
"""
ADDON = """\
kind: Deployment
metadata: {name: addon}
spec:
  template:
    spec:
      containers:
      - {name: main, image: none}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.crt and ca.key, whose client certificates the API server accepts."""
    folder = tmp_path_factory.mktemp("authority")
    openssl(folder, "req", "-x509", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    return folder


def openssl(folder: Path, command: str, *more: str) -> None:
    words = ("openssl", command, *more, "-newkey", "rsa:2048", "-nodes")
    subprocess.run(words, cwd=folder, check=True, capture_output=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def serving(tmp_path_factory: pytest.TempPathFactory, authority: Path) -> AsyncIterator[Serving]:
    flags = (f"--client-ca-file={authority / 'ca.crt'}", "--enable-admission-plugins=NodeRestriction")
    async with api_server(tmp_path_factory.mktemp("pools") / "control", *flags) as serving:
        await serving.schedule()
        await serving.api.post(
            "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}}
        )
        toleration = {"key": "xenpod.dev/zones", "operator": "Exists"}
        scheduling = {"nodeSelector": ZONES, "tolerations": [toleration]}
        overhead = {"podFixed": {"memory": "96Mi"}}
        for name in ("xenpod", "xenpod-metal"):
            body = {"metadata": {"name": name}, "handler": "xenpod"}
            await serving.api.post(CLASSES, body | {"scheduling": scheduling, "overhead": overhead})
        yield serving


@pytest_asyncio.fixture(loop_scope="session")
async def api(serving: Serving) -> AsyncIterator[Api]:
    """An API server without nodes and pods before and after each test."""
    yield serving.api
    await serving.api.delete(f"{PODS}?gracePeriodSeconds=0")
    await serving.api.delete(NODES)
    async with asyncio.timeout(PATIENCE):
        while (await serving.api.get(PODS))["items"]:  # noqa: ASYNC110 - with a grace of 0 it takes a moment
            await asyncio.sleep(0.1)


async def add_node(api: Api, name: str, labels: dict[str, str], taint: str = "", memory: str = "8Gi") -> None:
    size = {"cpu": "8", "memory": memory, "pods": str(ROOM)}
    taints = [{"key": taint, "value": "true", "effect": "NoSchedule"}] if taint else []
    made: Object = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
    made["status"] = {
        "capacity": size,
        "allocatable": size,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    found = await api.post(NODES, made)
    found["spec"]["taints"] = taints  # without the taint not-ready of a new node, from admission
    await api.call("PUT", f"{NODES}/{name}", found)


async def add_pod(api: Api, name: str, spec: Object) -> None:
    await api.post(PODS, {"metadata": {"name": name}, "spec": spec})


def zone_pod(memory: str = "256Mi") -> Object:
    """A pod after ``--fill``."""
    pod = YAML(typ="safe", pure=True).load(POD.replace("256Mi", memory))
    fill(pod, "xenpod-metal")
    spec: Object = pod["spec"]
    assert spec["runtimeClassName"] == "xenpod-metal"
    return spec


def addon_pod() -> Object:
    """A pod from a template after ``--critical``."""
    addon = YAML(typ="safe", pure=True).load(ADDON)
    Critical(addons=["default/addon"]).plan(addon)
    spec: Object = addon["spec"]["template"]["spec"]
    assert spec["tolerations"] and spec["affinity"]
    return spec


async def place(api: Api, name: str) -> str:
    """Create a pod: the pod's node."""
    found = await api.until(PODS, f"metadata.name={name}", lambda pod: bool(pod["spec"].get("nodeName")))
    return str(found["spec"]["nodeName"])


async def waits(api: Api, name: str, *texts: str) -> str:
    """Create a pod that cannot be placed: the scheduler's reason."""

    def said(pod: Object) -> str:
        conditions = pod["status"].get("conditions") or ()
        return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")

    found = await api.until(
        PODS, f"metadata.name={name}", lambda pod: all(text in said(pod) for text in ("available", *texts))
    )
    return said(found)


async def test_zone_pods_wait_while_their_pool_is_empty(api: Api) -> None:
    await add_node(api, "ordinary", {})
    await add_pod(api, "zone", zone_pod())
    assert "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector" in await waits(
        api, "zone"
    )
    await add_node(api, "zones-1", ZONES, "xenpod.dev/zones")
    assert await place(api, "zone") == "zones-1"


async def test_ordinary_pods_stay_off_the_pool(api: Api) -> None:
    await add_node(api, "zones-1", ZONES, "xenpod.dev/zones")
    await add_pod(api, "plain", {"containers": [{"name": "main", "image": "none"}]})
    await waits(api, "plain", "1 node(s) had untolerated taint(s)")
    await add_node(api, "ordinary", {})
    assert await place(api, "plain") == "ordinary"


async def test_zone_pods_wait_while_their_pool_is_full(api: Api) -> None:
    """Their overhead counts: two pods of 500 MiB and 96 MiB each do not fit into 1 GiB."""
    await add_node(api, "ordinary", {})
    await add_node(api, "zones-1", ZONES, "xenpod.dev/zones", "1Gi")
    await add_pod(api, "first", zone_pod("500Mi"))
    assert await place(api, "first") == "zones-1"
    await add_pod(api, "second", zone_pod("500Mi"))
    await waits(api, "second", "1 Insufficient memory", "1 node(s) didn't match Pod's node affinity/selector")
    await api.delete(f"{PODS}/first?gracePeriodSeconds=0")
    assert await place(api, "second") == "zones-1"


async def test_add_ons_prefer_their_pool_and_fall_back(api: Api) -> None:
    await add_node(api, "ordinary", {})
    await add_pod(api, "early", addon_pod())
    assert await place(api, "early") == "ordinary"  # the pool is empty
    await add_node(api, "addons-1", ADDONS, "CriticalAddonsOnly")
    for name in ("one", "two"):
        await add_pod(api, name, addon_pod())
        assert await place(api, name) == "addons-1"
    await add_pod(api, "late", addon_pod())
    assert await place(api, "late") == "ordinary"  # the pool is full
    await add_pod(api, "plain", {"containers": [{"name": "main", "image": "none"}]})
    await waits(api, "plain", "1 node(s) had untolerated taint(s)", "1 Too many pods")


async def test_nothing_moves_back_by_itself(api: Api) -> None:
    """Preference counts when a pod is placed, and not later."""
    await add_node(api, "ordinary", {})
    await add_pod(api, "early", addon_pod())
    assert await place(api, "early") == "ordinary"
    await add_node(api, "addons-1", ADDONS, "CriticalAddonsOnly")
    await add_pod(api, "later", addon_pod())
    assert await place(api, "later") == "addons-1"
    assert await place(api, "early") == "ordinary"


async def test_an_add_on_without_the_selector_stays_off_zone_nodes(api: Api) -> None:
    await add_node(api, "zones-1", ZONES, "xenpod.dev/zones")
    await add_pod(api, "addon", addon_pod())
    await waits(api, "addon", "1 node(s) had untolerated taint(s)")


@pytest_asyncio.fixture(loop_scope="session")
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path / "n")
    await made.start()
    yield made
    await made.close()


async def labelled(node: CriNode, kubeconfig: Path, *more: str) -> tuple[int, str]:
    """Run xenpod-labels to its end: the exit status, and the output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cluster.labeller", "node", "--cri-socket", str(node.daemon.socket)),
        *("--kubeconfig", str(kubeconfig), *more),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def ours(found: Any) -> dict[str, str]:
    labels = found["metadata"]["labels"]
    return {key: value for key, value in labels.items() if key != "xenpod.dev/user-namespaces"}


@pytest.mark.root
@needs_node
async def test_the_labeller_on_a_real_api_server(api: Api, serving: Serving, node: CriNode) -> None:
    await add_node(api, "zones-1", {**ZONES, "xenpod.dev/handler.gone": "true"})
    status, said = await labelled(node, serving.kubeconfig, "--name", "zones-1", "--once")
    assert status == 0, said
    assert ours(await api.get(f"{NODES}/zones-1")) == {
        **ZONES,
        "xenpod.dev/toolstack": "fake",
        "xenpod.dev/security-boundary": "false",
        "xenpod.dev/handler.xenpod": "true",
        "xenpod.dev/mode.pv": "true",
        "xenpod.dev/can.pv": "true",
    }
    version = (await api.get(f"{NODES}/zones-1"))["metadata"]["resourceVersion"]
    assert (await labelled(node, serving.kubeconfig, "--name", "zones-1", "--once"))[0] == 0
    assert (await api.get(f"{NODES}/zones-1"))["metadata"]["resourceVersion"] == version
    status, said = await labelled(node, serving.kubeconfig, "--name", "zones-2", "--once")
    assert status == 1 and 'nodes "zones-2" not found [404]' in said
    assert (await labelled(node, serving.kubeconfig, "--name", "zones-1", "--remove"))[0] == 0
    assert ours(await api.get(f"{NODES}/zones-1")) == ZONES


def kubelets(authority: Path, name: str, serving: Serving) -> Path:
    """A kubeconfig with a certificate like the kubelet's on the node, in files beside the kubeconfig."""
    openssl(authority, "req", "-subj", f"/O=system:nodes/CN=system:node:{name}", "-keyout", "kubelet.key",
            "-x509", "-CA", "ca.crt", "-CAkey", "ca.key", "-out", "kubelet.crt")  # fmt: skip
    config = json.loads(serving.kubeconfig.read_text())
    config["users"][0]["user"] = {"client-certificate": "kubelet.crt", "client-key": "kubelet.key"}
    path = authority / "kubelet.conf"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.root
@needs_node
async def test_a_kubelets_credentials_suffice_for_its_own_node(
    api: Api, serving: Serving, node: CriNode, authority: Path
) -> None:
    for name in ("zones-1", "zones-2"):
        await add_node(api, name, ZONES)
    path = kubelets(authority, "zones-1", serving)
    status, said = await labelled(node, path, "--name", "zones-1", "--once")
    assert status == 0, said
    assert "xenpod.dev/toolstack" in ours(await api.get(f"{NODES}/zones-1"))
    status, said = await labelled(node, path, "--name", "zones-2", "--once")
    assert status == 1 and "node 'zones-1' is not allowed to modify node 'zones-2'" in said.replace('"', "'")
    assert ours(await api.get(f"{NODES}/zones-2")) == ZONES
