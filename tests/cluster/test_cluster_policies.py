"""The objects of ``protect generate`` on a real API server, which accepts each object; each does its work."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ruamel.yaml import YAML

from protectctl.__main__ import parser
from protectctl.cluster.generate import generate
from tests.support.cluster.api import PATIENCE, Api, ApiRefused, Object
from tests.support.cluster.cluster import pod
from tests.support.cluster.control_plane import api_server
from tests.support.cluster.programs import needs_kubernetes
from tests.support.waiting import until

pytestmark = [needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

ADMISSION = "admissionregistration.k8s.io"
RESOURCES = {
    "RuntimeClass": "runtimeclasses",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
PLATFORMS = """
[platforms.metal]
handlers = ["xenpod", "small", "own"]
own_namespaces = ["own"]
taints = ["example.com/zones=true:NoSchedule"]
overhead = {memory = "96Mi", cpu = "25m"}
delegate = {namespaces = ["kube-system", "trusted-*"]}
[platforms.cloud]
overhead = {}
"""
TOLERATION = {"key": "example.com/zones", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
PLAIN, TENANT, MISTAKEN, TRUSTED = "plain", "tenant", "mistaken", "trusted-agents"
EVERYWHERE = [{"operator": "Exists"}]
"""Tolerations of an agent for all nodes."""


async def made(folder: Path, *arguments: str) -> list[Path]:
    """The files of ``protect generate``."""
    path = folder / "platforms.toml"
    path.write_text(PLATFORMS)
    words = ["generate", *arguments, "--platforms", str(path), "--to", str(folder / "made")]
    await generate(parser().parse_args(words))
    return sorted((folder / "made").iterdir())


async def apply(api: Api, path: Path, query: str = "") -> None:
    """Apply documents one after another, as kubectl does; unknown fields are refused."""
    for text in path.read_text().split("---\n"):
        found = YAML(typ="safe", pure=True).load(text)
        at = f"/apis/{found['apiVersion']}/{RESOURCES[found['kind']]}"
        await api.post(f"{at}?fieldValidation=Strict{query}", text)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """An API server with a scheduler, four namespaces, and all of our objects in effect."""
    folder = tmp_path_factory.mktemp("policies")
    older = ",".join(f"{ADMISSION}/{version}=true" for version in ("v1alpha1", "v1beta1"))
    async with api_server(folder / "control", f"--runtime-config={older}") as serving:
        await serving.schedule()
        for name, labels in (
            (PLAIN, {}),
            (TRUSTED, {}),
            (TENANT, {"xenpod.dev/runtime-class": "xenpod-metal"}),
            (MISTAKEN, {"xenpod.dev/runtime-class": "xenpod"}),
        ):
            await serving.api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
            account = {"metadata": {"name": "default"}}
            await serving.api.post(f"/api/v1/namespaces/{name}/serviceaccounts", account)
        for path in await made(folder):
            await apply(serving.api, path)
        await _in_effect(serving.api)
        yield serving.api


async def _in_effect(api: Api) -> None:
    """Wait until policies act, which takes a moment and has no event in the API."""

    async def assigned() -> bool:
        found = await asked(api, TENANT)
        return isinstance(found, dict) and "runtimeClassName" in found

    async def refused(**spec: Any) -> bool:
        return isinstance(await asked(api, PLAIN, **spec), str)

    await until(assigned, PATIENCE)
    await until(partial(refused, runtimeClassName="small-metal", hostPID=True), PATIENCE)
    await until(partial(refused, tolerations=EVERYWHERE), PATIENCE)


async def asked(api: Api, namespace: str, **spec: Any) -> Object | str:
    """Create a pod as a dry run: the pod's spec, or the reason of the refusal."""
    try:
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict"
        answer = await api.post(path, pod("asked", "true", **spec))
    except ApiRefused as refused:
        return str(refused)
    found: Object = answer["spec"]
    return found


async def admitted(api: Api, namespace: str, **spec: Any) -> Object:
    found = await asked(api, namespace, **spec)
    assert isinstance(found, dict), found
    return found


@pytest.mark.parametrize("release", ["1.33", "1.35"])
async def test_older_versions_of_the_policy_are_taken_too(api: Api, tmp_path: Path, release: str) -> None:
    for path in await made(tmp_path, "assign-class", "--kubernetes", release):
        text = path.read_text().replace("xenpod-assign-class", "another")
        path.write_text(text)
        await apply(api, path, "&dryRun=All")


async def test_a_pod_of_a_labelled_namespace_gets_its_class(api: Api) -> None:
    """With it come the node selector, the toleration and the overhead of the class."""
    found = await admitted(api, TENANT)
    assert found["runtimeClassName"] == "xenpod-metal"
    assert found["nodeSelector"] == {"xenpod.dev/platform": "metal"}
    assert TOLERATION in found["tolerations"]
    assert found["overhead"] == {"memory": "96Mi", "cpu": "25m"}


async def test_node_selector_and_tolerations_of_the_pod_are_kept(api: Api) -> None:
    own = {"key": "own", "operator": "Exists"}
    found = await admitted(api, TENANT, nodeSelector={"disk": "ssd"}, tolerations=[own])
    assert found["nodeSelector"] == {"disk": "ssd", "xenpod.dev/platform": "metal"}
    assert own in found["tolerations"] and TOLERATION in found["tolerations"]


@pytest.mark.parametrize("name", ["small-metal", "xenpod-cloud"])
async def test_pod_with_a_class_keeps_the_class(api: Api, name: str) -> None:
    assert (await admitted(api, TENANT, runtimeClassName=name))["runtimeClassName"] == name


async def test_a_class_without_overhead(api: Api) -> None:
    found = await admitted(api, PLAIN, runtimeClassName="xenpod-cloud")
    assert "overhead" not in found
    assert found["nodeSelector"] == {"xenpod.dev/platform": "cloud"}


async def test_a_pod_of_another_namespace_gets_none(api: Api) -> None:
    found = await admitted(api, PLAIN)
    assert not {"runtimeClassName", "nodeSelector", "overhead"} & set(found)


async def test_label_without_a_class_keeps_pods_out(api: Api) -> None:
    """They must not run without a zone."""
    assert r"RuntimeClass \"xenpod\" not found" in str(await asked(api, MISTAKEN))


FOR_THE_HOST = [
    pytest.param({"hostNetwork": True}, id="hostNetwork"),
    pytest.param({"hostPID": True}, id="hostPID"),
    pytest.param({"hostIPC": True}, id="hostIPC"),
    pytest.param({"volumes": [{"name": "a", "hostPath": {"path": "/etc"}}]}, id="hostPath"),
]


@pytest.mark.parametrize("spec", FOR_THE_HOST)
async def test_pod_with_a_zone_gets_nothing_of_the_host(
    api: Api, request: pytest.FixtureRequest, spec: Object
) -> None:
    named = request.node.callspec.id
    for namespace, more in ((TENANT, {}), (PLAIN, {"runtimeClassName": "small-metal"})):
        refused = await asked(api, namespace, **spec, **more)
        assert isinstance(refused, str) and refused.startswith("403: ")
        assert "a pod with a zone of its own does not get" in refused and f"({named})" in refused


@pytest.mark.parametrize("spec", FOR_THE_HOST)
async def test_pod_without_a_zone_keeps_access_to_the_host(api: Api, spec: Object) -> None:
    found = await admitted(api, PLAIN, **spec)
    assert {key: found[key] for key in spec if key != "volumes"} == {
        key: spec[key] for key in spec if key != "volumes"
    }


@pytest.mark.parametrize("name", ["hostPID", "hostIPC"])
async def test_handler_with_the_zones_namespaces_for_the_hosts(api: Api, name: str) -> None:
    assert (await admitted(api, PLAIN, runtimeClassName="own-metal", **{name: True}))[name] is True
    refused = await asked(api, PLAIN, runtimeClassName="own-metal", hostNetwork=True, **{name: True})
    assert isinstance(refused, str) and "(hostNetwork)" in refused


async def test_a_pod_with_a_zone_and_volumes_of_its_own(api: Api) -> None:
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}]
    found = await admitted(api, TENANT, volumes=volumes, hostNetwork=False, hostPID=False)
    assert [one["name"] for one in found["volumes"]][:2] == ["a", "b"]


async def test_the_scheduler_brings_zones_to_their_nodes_and_other_pods_elsewhere(
    api: Api, tmp_path: Path
) -> None:
    """Labels and taints from ``protect generate labels``."""
    await _node(api, "ordinary", {}, [])
    [script] = await made(tmp_path, "labels", "--node", "metal", "--platform", "metal")
    labelling, tainting = (shlex.split(line) for line in script.read_text().splitlines())
    assert labelling[:5] == ["kubectl", "label", "--overwrite", "nodes", "metal"]
    assert tainting[:5] == ["kubectl", "taint", "--overwrite", "nodes", "metal"]
    labels = dict(word.split("=") for word in labelling[5:])
    await _node(api, "metal", labels, [_taint(word) for word in tainting[5:]])
    for namespace, node in ((TENANT, "metal"), (PLAIN, "ordinary")):
        at = f"/api/v1/namespaces/{namespace}/pods"
        await api.post(at, pod("placed", "true"))
        placed = await api.until(at, "metadata.name=placed", lambda one: "nodeName" in one["spec"])
        assert placed["spec"]["nodeName"] == node
    only_there = {"nodeSelector": {"xenpod.dev/platform": "metal"}}
    await api.post(f"/api/v1/namespaces/{PLAIN}/pods", pod("kept-off", "true", **only_there))
    at = f"/api/v1/namespaces/{PLAIN}/pods"
    waiting = await api.until(at, "metadata.name=kept-off", lambda one: "conditions" in one["status"])
    assert "untolerated taint" in waiting["status"]["conditions"][0]["message"]


def _taint(word: str) -> Object:
    rest, _, effect = word.partition(":")
    key, _, value = rest.partition("=")
    return {"key": key, "value": value, "effect": effect}


async def _node(api: Api, name: str, labels: Object, taints: list[Object]) -> None:
    """Make a node that is Ready, without a kubelet, and remove the taint of new nodes."""
    capacity = {"cpu": "4", "memory": "4Gi", "pods": "10"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
    made = await api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "status": status})
    made["spec"]["taints"] = taints
    await api.call("PUT", f"/api/v1/nodes/{name}", made)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"tolerations": EVERYWHERE}, id="all taints"),
        pytest.param({"tolerations": [TOLERATION]}, id="the taint"),
        pytest.param({"nodeName": "zones"}, id="a node"),
        pytest.param({"tolerations": EVERYWHERE, "hostNetwork": True}, id="hostNetwork"),
    ],
)
async def test_a_pod_gets_a_container_beside_zones_only_in_the_namespaces_of_the_delegate(
    api: Api, spec: dict[str, Any]
) -> None:
    refused = await asked(api, PLAIN, **spec)
    assert isinstance(refused, str) and "[delegate] namespaces of cri.toml" in refused
    assert "runtimeClassName" not in await admitted(api, TRUSTED, **spec)


async def test_pods_in_zones_or_on_other_nodes_are_admitted_in_any_namespace(api: Api) -> None:
    await admitted(api, PLAIN, hostNetwork=True)
    await admitted(api, PLAIN, runtimeClassName="xenpod-metal", tolerations=EVERYWHERE)
