"""The cluster of the e2e suite, with two nodes: names, Services, the API server and pods reach each other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.cluster.api import Object
from tests.support.cluster.cluster import PODS
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node
from tests.support.e2e.rig import RUNTIMES, Rig, needs_suite, rig

pytestmark = [
    pytest.mark.root,
    needs_node,
    needs_kubernetes,
    needs_suite,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
]

SERVICES = "/api/v1/namespaces/default/services"
IMAGE = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
WEB = "web.default.svc.cluster.local"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=RUNTIMES)
async def two_nodes(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A web server on the first node, behind a Service, with a port of each node."""
    async with rig(request.param) as made:
        await made.api.post(PODS, pod("web", "node1", ["netexec", "--http-port=8080"]))
        spec = {
            "type": "NodePort",
            "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080}],
        }
        await made.api.post(SERVICES, {"metadata": {"name": "web"}, "spec": spec})
        await made.api.until(PODS, "metadata.name=web", runs)
        yield made
        await made.api.delete(f"{PODS}?gracePeriodSeconds=1")


def pod(name: str, node: str, args: list[str]) -> Object:
    container = {"name": "main", "image": IMAGE, "args": args}
    spec = {"nodeName": node, "restartPolicy": "Never", "containers": [container]}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def runs(found: Object) -> bool:
    return bool(found["status"]["phase"] == "Running")


async def said(made: Rig, name: str, node: str, script: str) -> str:
    """The output of a script in a pod on the node, which must succeed within 100 tries."""
    patient = f"for n in $(seq 100); do {script} && exit 0; sleep 0.2; done; exit 1"
    body = pod(name, node, [])
    body["spec"]["containers"][0] |= {"command": ["sh", "-c", patient]}
    await made.api.post(PODS, body)
    ended = await made.api.until(
        PODS, f"metadata.name={name}", lambda one: one["status"]["phase"] in ("Succeeded", "Failed")
    )
    log = await made.api.text("GET", f"{PODS}/{name}/log")
    assert ended["status"]["phase"] == "Succeeded", log
    return log


async def test_both_nodes_have_their_own_address(two_nodes: Rig) -> None:
    found: Any = await two_nodes.api.get("/api/v1/nodes")
    addresses = [
        one["address"]
        for node in found["items"]
        for one in node["status"]["addresses"]
        if one["type"] == "InternalIP"
    ]
    assert len(set(addresses)) == len(two_nodes.nodes) == 2


@pytest.mark.parametrize("node", ["node1", "node2"])
async def test_service_is_reached_by_its_name(two_nodes: Rig, node: str) -> None:
    assert "web" in await said(two_nodes, f"by-name-{node}", node, f"curl -sf http://{WEB}/hostname")


async def test_pod_of_the_other_node_is_reached_with_the_own_address(two_nodes: Rig) -> None:
    web = (await two_nodes.api.get(f"{PODS}/web"))["status"]["podIP"]
    client = await said(two_nodes, "by-address", "node2", f"curl -sf http://{web}:8080/clientip")
    own = (await two_nodes.api.get(f"{PODS}/by-address"))["status"]["podIP"]
    assert client.startswith(f"{own}:")


async def test_port_of_the_other_node_reaches_the_service(two_nodes: Rig) -> None:
    service = await two_nodes.api.get(f"{SERVICES}/web")
    port = service["spec"]["ports"][0]["nodePort"]
    node = (await two_nodes.api.get("/api/v1/nodes/node2"))["status"]["addresses"][0]["address"]
    script = f"curl -sf http://{node}:{port}/hostname"
    assert "web" in await said(two_nodes, "by-port", "node1", script)


@pytest.mark.parametrize("node", ["node1", "node2"])
async def test_api_server_answers_pods(two_nodes: Rig, node: str) -> None:
    trust = "--cacert /var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    script = f"curl -sf {trust} https://kubernetes.default.svc/version"
    assert json.loads(await said(two_nodes, f"api-{node}", node, script))["major"] == "1"
