"""A real scheduler with the feature (KEP-5517) counts the dom0 memory of a claim's zone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cluster.dra.config import ClaimSizes
from cluster.dra.slices.document import NodeSlice, SliceVersion, document
from cluster.dra.slices.offer import MemoryDevice
from daemonkit.quantity import whole
from tests.support.cluster.api import Api, Object
from tests.support.cluster.claims import CLAIMS, CLASS, DEVICE_CLASSES, DRIVER, SLICES, claim, request
from tests.support.cluster.cluster import NODE, NODES, PODS, pod
from tests.support.cluster.control_plane import api_server
from tests.support.cluster.programs import needs_kubernetes

pytestmark = [needs_kubernetes, pytest.mark.asyncio(loop_scope="module")]

MIB, GIB = 1 << 20, 1 << 30
DOM0 = 100 * MIB
"""The node's own memory, and the share of each claim: three claims fit, and no fourth."""
TAKEN = 30 * MIB
GATE = "--feature-gates=DRANodeAllocatableResources=true"


@pytest_asyncio.fixture(loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """A node with 8 GiB for zones and 100 MiB of its own, and without a kubelet."""
    async with api_server(tmp_path_factory.mktemp("dom0") / "control", GATE) as serving:
        await serving.schedule(GATE)
        account = {"metadata": {"name": "default"}}
        await serving.api.post("/api/v1/namespaces/default/serviceaccounts", account)
        capacity = {"memory": str(DOM0), "cpu": "8", "pods": "100"}
        node = await serving.api.post(NODES, {"metadata": {"name": NODE}})
        node["status"] = {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await serving.api.call("PUT", f"{NODES}/{NODE}/status", node)
        await _untainted(serving.api)
        device = MemoryDevice("memory-one", 8 * GIB, shared=True)
        uid = node["metadata"]["uid"]
        slice_ = NodeSlice(DRIVER, NODE, uid, 1, (device,), ClaimSizes(), {}, TAKEN)
        await serving.api.post(SLICES, document(slice_, SliceVersion.V1))
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        made = {"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}}
        await serving.api.post(DEVICE_CLASSES, made)
        yield serving.api


async def _untainted(api: Api) -> None:
    """Nobody else removes the taint of a new node."""
    node = await api.get(f"{NODES}/{NODE}")
    node["spec"].pop("taints", None)
    await api.call("PUT", f"{NODES}/{NODE}", node)


async def started(api: Api, name: str, *, by_container: bool = True) -> None:
    await api.post(CLAIMS, claim(name, request("512Mi")))
    claims = [{"name": "zone", "resourceClaimName": name}]
    named = {"resources": {"claims": [{"name": "zone"}]}} if by_container else {}
    await api.post(PODS, pod(name, "true", container=named, resourceClaims=claims))


def _placed(found: Object) -> bool:
    conditions = found["status"].get("conditions") or ()
    return any(one["type"] == "PodScheduled" for one in conditions)


async def placed(api: Api, name: str) -> Object:
    """The pod after the scheduler's decision."""
    return await api.until(PODS, f"metadata.name={name}", _placed)


async def test_claim_without_a_container_is_not_scheduled(api: Api) -> None:
    """The reason why this is off by default in dra.toml."""
    await started(api, "unnamed", by_container=False)
    assert "not referenced by any container" in _why(await placed(api, "unnamed"))


async def test_as_many_claims_fit_as_dom0_has_memory_for(api: Api) -> None:
    """Memory for sixteen zones is free, but dom0's memory is enough for three."""
    for name in ("one", "two", "three"):
        await started(api, name)
        found = await placed(api, name)
        assert found["spec"].get("nodeName") == NODE, _why(found)
        (counted,) = found["status"]["nodeAllocatableResourceClaimStatuses"]
        assert whole(counted["resources"]["memory"]) == TAKEN
    await started(api, "four")
    found = await placed(api, "four")
    assert "nodeName" not in found["spec"]
    assert "Insufficient memory" in _why(found)


def _why(found: Object) -> str:
    conditions = found["status"]["conditions"]
    return next(str(one.get("message")) for one in conditions if one["type"] == "PodScheduled")
