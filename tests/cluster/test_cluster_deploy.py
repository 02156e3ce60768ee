"""The generated objects on a real API server, which accepts them; the labeller can do only its work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cluster.labeller.node import NodeLabels
from daemonkit.faults import Denied
from tests.support.cluster.api import PATIENCE, Api, ApiRefused, Object
from tests.support.cluster.control_plane import Serving, api_server
from tests.support.cluster.programs import needs_kubernetes
from tests.support.manifests import schemas
from tests.support.manifests.applied import apply
from tests.support.manifests.sources import (
    NAMESPACE,
    SHIPPED,
    chart,
    defaults,
    generate,
    needs_helm,
    read,
)
from tests.support.waiting import until

pytestmark = [needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

HERE, ELSEWHERE = "here", "elsewhere"
OWN = "xenpod.dev/can.hvm"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "0"}
"""An owner that does not exist: the garbage collection removes the owner's objects."""

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
ADMISSION = "admissionregistration.k8s.io"
VALUES = Path(__file__).resolve().parents[1] / "data" / "chart-values"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def serving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """An API server with RBAC, two nodes, and the default objects in effect."""
    folder = tmp_path_factory.mktemp("deploy")
    older = ",".join(f"{ADMISSION}/{version}=true" for version in ("v1alpha1", "v1beta1"))
    async with api_server(folder / "api", f"--runtime-config={older}", authorization="RBAC") as serving:
        for name in (HERE, ELSEWHERE):
            labels = {"example.com/kept": "yes", "xenpod.dev/zones": "true"}
            await serving.api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        await apply(serving.api, defaults())
        yield serving


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def labeller(serving: Serving) -> Api:
    """A client with the token of a pod of the DaemonSet, on ``HERE``."""
    client = await _of_pod(serving, defaults())
    # RBAC and policies act a moment after their creation.
    await until(lambda: _bounded(client), PATIENCE)
    return client


async def _of_pod(serving: Serving, objects: Sequence[Object]) -> Api:
    """A client with the token of a pod of the only DaemonSet, on ``HERE``."""
    [daemon_set] = [one for one in objects if one["kind"] == "DaemonSet"]
    template = daemon_set["spec"]["template"]
    account = template["spec"]["serviceAccountName"]
    body = {
        "metadata": template["metadata"] | {"name": account},
        "spec": template["spec"] | {"nodeName": HERE},
    }
    pod = await serving.api.post(f"/api/v1/namespaces/{NAMESPACE}/pods?fieldValidation=Strict", body)
    bound = {"apiVersion": "v1", "kind": "Pod", "name": account, "uid": pod["metadata"]["uid"]}
    asked = {"spec": {"boundObjectRef": bound, "expirationSeconds": 3600}}
    at = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    return Api(serving.api.port, (await serving.api.post(at, asked))["status"]["token"])


async def _bounded(client: Api) -> bool:
    try:
        await client.patch(
            f"/api/v1/nodes/{HERE}?dryRun=All", {"metadata": {"labels": {"example.com/a": "b"}}}
        )
    except ApiRefused as refused:
        return "ValidatingAdmissionPolicy" in str(refused)
    return False


@pytest.mark.parametrize(
    "arguments",
    [("--kubernetes", "1.33"), ("--kubernetes", "1.34"), ("--kyverno", "1.17"), ("driver", "claims")],
)
async def test_other_releases_and_claims_are_taken(serving: Serving, arguments: tuple[str, ...]) -> None:
    await apply(serving.api, _renamed(defaults(*arguments)), "&dryRun=All")


@needs_helm
@pytest.mark.parametrize("values", [None, "two-platforms", "kyverno", "least"])
@pytest.mark.parametrize("release", schemas.VERSIONS)
async def test_api_server_accepts_the_objects_of_the_chart(
    serving: Serving, values: str | None, release: str
) -> None:
    files = [VALUES / f"{values}.yaml"] if values else []
    await apply(serving.api, _renamed(chart(*files, kubernetes=release)), "&dryRun=All")


async def test_unknown_field_is_refused(serving: Serving) -> None:
    """Show that the tests above can fail."""
    misspelt = [one | {"specs": {}} for one in _renamed(defaults())]
    for one in misspelt:
        with pytest.raises(ApiRefused, match="strict decoding error: unknown field .*specs"):
            await apply(serving.api, [one], "&dryRun=All")


def _renamed(objects: Sequence[Object]) -> list[Object]:
    """The objects under names other than those in effect."""
    return [one | {"metadata": one["metadata"] | {"name": f"{one['metadata']['name']}-x"}} for one in objects]


async def test_the_labeller_labels_its_node(serving: Serving, labeller: Api, tmp_path: Path) -> None:
    """Uses the program's own client."""
    sink = NodeLabels(HERE, _kubeconfig(serving, labeller, tmp_path))
    assert await sink.put({OWN: "true", "xenpod.dev/xen-version.major": "4"})
    found = (await serving.api.get(f"/api/v1/nodes/{HERE}"))["metadata"]["labels"]
    assert {OWN, "xenpod.dev/xen-version.major", "example.com/kept", "xenpod.dev/zones"} <= set(found)
    assert await sink.remove()
    found = (await serving.api.get(f"/api/v1/nodes/{HERE}"))["metadata"]["labels"]
    assert OWN not in found and "example.com/kept" in found


async def test_the_labeller_does_not_label_another_node(
    serving: Serving, labeller: Api, tmp_path: Path
) -> None:
    with pytest.raises(Denied, match="xenpod-labels changes only the node that it runs on"):
        await NodeLabels(ELSEWHERE, _kubeconfig(serving, labeller, tmp_path)).put({OWN: "true"})


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"metadata": {"labels": {"example.com/new": "a"}}}, "changes only its own labels"),
        ({"metadata": {"labels": {"example.com/kept": "no"}}}, "changes only its own labels"),
        ({"metadata": {"labels": {"xenpod.dev/zones": "false"}}}, "changes only its own labels"),
        ({"metadata": {"labels": {"example.com/kept": None}}}, "removes only its own labels"),
        ({"metadata": {"labels": None}}, "removes only its own labels"),
        ({"metadata": {"annotations": {"a": "b"}}}, "changes only labels"),
        ({"metadata": {"finalizers": ["example.com/kept"]}}, "changes only labels"),
        ({"metadata": {"ownerReferences": [OWNER]}}, "changes only labels"),
        ({"spec": {"unschedulable": True}}, "changes only labels"),
        ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "changes only labels"),
    ],
)
async def test_the_labeller_changes_nothing_but_its_labels(
    serving: Serving, labeller: Api, patch: Object, said: str
) -> None:
    with pytest.raises(ApiRefused, match=f"403: .*xenpod-labels {said}"):
        await labeller.patch(f"/api/v1/nodes/{HERE}", patch)
    await serving.api.patch(f"/api/v1/nodes/{HERE}?dryRun=All", patch)  # an administrator may


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/nodes"),
        ("DELETE", f"/api/v1/nodes/{HERE}"),
        ("PATCH", f"/api/v1/nodes/{HERE}/status"),
        ("GET", "/api/v1/pods"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/xenpod-labels/token"),
    ],
)
async def test_the_labeller_has_no_other_rights(labeller: Api, method: str, path: str) -> None:
    body: Any = None if method in ("GET", "DELETE") else {}
    with pytest.raises(ApiRefused, match="403: .*xenpod-labels.* cannot"):
        await labeller.call(method, path, body)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def driver(serving: Serving) -> Api:
    """A client with the token of a pod of the driver's DaemonSet, on ``HERE``."""
    objects = read(generate(*SHIPPED, "driver"))
    await apply(serving.api, objects)
    client = await _of_pod(serving, objects)
    async with asyncio.timeout(PATIENCE):  # RBAC and policies act a moment after their creation
        while "ValidatingAdmissionPolicy" not in await _slice(client, ELSEWHERE):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return client


async def _slice(client: Api, node: str, name: str = "zones.xenpod.dev") -> str:
    """Write a slice as a dry run: why it is refused, or ""."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": name, "nodeName": node, "pool": pool, "devices": [{"name": "a"}]}
    try:
        await client.post(f"{SLICES}?dryRun=All", {"metadata": {"name": f"{node}-a"}, "spec": spec})
    except ApiRefused as refused:
        return str(refused)
    return ""


async def test_the_driver_writes_its_own_slices_of_its_node(driver: Api) -> None:
    assert await _slice(driver, HERE) == ""
    assert "xenpod-dra writes only slices of the node that it runs on" in await _slice(driver, ELSEWHERE)
    assert "xenpod-dra writes only its own slices" in await _slice(driver, HERE, "other.example.com")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/nodes"),
        ("PATCH", f"/api/v1/nodes/{HERE}"),
        ("GET", SLICES),
        ("DELETE", f"{SLICES}/any"),
        ("GET", f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"),
        ("GET", "/apis/resource.k8s.io/v1/resourceclaims"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/pods"),
    ],
)
async def test_the_driver_has_no_other_rights(driver: Api, method: str, path: str) -> None:
    with pytest.raises(ApiRefused, match="403: .*xenpod-dra.* cannot"):
        await driver.call(method, path, {} if method == "PATCH" else None)


def _kubeconfig(serving: Serving, client: Api, folder: Path) -> Path:
    path = folder / "kubeconfig"
    path.write_text(serving.kubeconfig.read_text().replace(serving.api.token, client.token))
    return path
