"""End-to-end cases of kubernetes-sigs/dra-example-driver 0.36 that apply to zone memory.

See docs/cluster/dra.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from cluster.dra.config import ClaimSizes
from cluster.dra.slices.document import devices
from tests.support.cluster.claims import (
    CLAIMS,
    CLASS,
    DEVICE_CLASSES,
    DRIVER,
    Driver,
    claim,
    driving,
    request,
)
from tests.support.cluster.cluster import PODS, Cluster, pod
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import IMAGE, needs_node

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
LIMITS = {"limits": {"memory": "32Mi"}, "requests": {"memory": "1Mi"}}
EXTENDED = "xenpod.dev/zone"


@pytest_asyncio.fixture(loop_scope="session")
async def driver(cluster: Cluster) -> AsyncIterator[Driver]:
    async with driving(cluster) as made:
        yield made
        await cluster.tidy()
        await cluster.api.delete(CLAIMS)
        await made.agree()


def using(*names: str) -> dict[str, Any]:
    """A container's resources, with claims of the pod."""
    return {"resources": {**LIMITS, "claims": [{"name": name} for name in names]}}


async def create(driver: Driver, name: str, *names: str, **spec: Any) -> None:
    claims = [{"name": one, "resourceClaimName": one} for one in names]
    await driver.cluster.create(name, "sleep", "1000", container=using(*names), resourceClaims=claims, **spec)


async def results(driver: Driver, name: str) -> list[Any]:
    found = await driver.cluster.api.get(f"{CLAIMS}/{name}")
    return list(found["status"]["allocation"]["devices"]["results"])


async def reserved(driver: Driver) -> list[int]:
    """MiB of each reservation, with the domain's own."""
    found = (await driver.reservations()).values()
    return sorted((one.memory_bytes + one.overhead_bytes) // MIB for one in found)


async def test_multiple_requests_of_a_claim(driver: Driver) -> None:
    await driver.cluster.api.post(CLAIMS, claim("two", request("256Mi", "a"), request("128Mi", "b")))
    await create(driver, "pod0", "two")
    await driver.cluster.started("pod0")
    assert await reserved(driver) == [384]


async def test_claim_shared_by_containers_and_an_init_container(driver: Driver) -> None:
    await driver.cluster.api.post(CLAIMS, claim("shared", request("512Mi")))
    made = pod(
        "pod0",
        "sleep",
        "1000",
        container=using("shared"),
        resourceClaims=[{"name": "shared", "resourceClaimName": "shared"}],
    )
    base = {"image": IMAGE, **using("shared")}
    made["spec"]["initContainers"] = [{"name": "init0", "command": ["true"], **base}]
    made["spec"]["containers"].append({"name": "ctr1", "command": ["sleep", "1000"], **base})
    await driver.cluster.api.post(PODS, made)
    await driver.cluster.started("pod0")
    (one,) = (await driver.reservations()).values()
    (zone,) = await driver.cluster.zones()
    assert one.zone_id == zone.id and one.memory_bytes == zone.resources.memory_bytes


async def test_a_selector_in_cel(driver: Driver) -> None:
    expression = f'device.attributes["{DRIVER}"].toolstack == "fake" && device.attributes["{DRIVER}"].pv'
    chosen = request("256Mi", selectors=[{"cel": {"expression": expression}}])
    other = request("256Mi", selectors=[{"cel": {"expression": expression.replace('"fake"', '"libxl"')}}])
    await driver.cluster.api.post(CLAIMS, claim("chosen", chosen))
    await driver.cluster.api.post(CLAIMS, claim("other", other))
    await create(driver, "pod0", "chosen")
    await create(driver, "pod1", "other")
    await driver.cluster.started("pod0")
    seen = await driver.cluster.until("pod1", lambda found: bool(found["status"].get("conditions")))
    assert "cannot allocate all claims" in str(seen["status"]["conditions"])
    assert await reserved(driver) == [256]


async def test_first_alternative_with_enough_memory_is_chosen(driver: Driver) -> None:
    """The first that fits: the second, where the first is more than the node has."""

    def alternatives(*sizes: str) -> dict[str, object]:
        subrequests = [
            {"name": f"n{number}", "deviceClassName": CLASS, "capacity": {"requests": {"memory": size}}}
            for number, size in enumerate(sizes)
        ]
        return {"name": "zone", "firstAvailable": subrequests}

    await driver.cluster.api.post(CLAIMS, claim("falls", alternatives("900Gi", "256Mi")))
    await driver.cluster.api.post(CLAIMS, claim("prefers", alternatives("512Mi", "256Mi")))
    for name in ("falls", "prefers"):
        await create(driver, name, name)
    await driver.cluster.started("falls", "prefers")
    assert [one["request"] for one in await results(driver, "falls")] == ["zone/n1"]
    assert [one["request"] for one in await results(driver, "prefers")] == ["zone/n0"]
    assert await reserved(driver) == [256, 512]


async def test_shares_of_a_device(driver: Driver) -> None:
    (device,) = devices(await driver.slice())
    assert device["allowMultipleAllocations"] is True
    assert set(device["capacity"]["memory"]["requestPolicy"]) == {"default", "validRange"}
    for name, size in (("share0", "256Mi"), ("share1", "257Mi")):
        await driver.cluster.api.post(CLAIMS, claim(name, request(size)))
        await create(driver, name, name)
    await driver.cluster.started("share0", "share1")
    shares = [*(await results(driver, "share0")), *(await results(driver, "share1"))]
    assert {one["device"] for one in shares} == {device["name"]}
    assert len({one["shareID"] for one in shares}) == 2
    assert [one["consumedCapacity"]["memory"] for one in shares] == ["256Mi", "257Mi"]
    assert await reserved(driver) == [256, 257]


async def test_an_extended_resource_of_the_device_class(driver: Driver) -> None:
    """The scheduler makes a claim of the default size for the request; the pod names no claim."""
    await driver.cluster.api.patch(f"{DEVICE_CLASSES}/{CLASS}", {"spec": {"extendedResourceName": EXTENDED}})
    asked = {"resources": {"limits": {"memory": "32Mi", EXTENDED: "1"}, "requests": {"memory": "1Mi"}}}
    await driver.cluster.create("pod0", "sleep", "1000", container=asked)
    seen = (await driver.cluster.started("pod0"))[0]
    status = seen["status"]["extendedResourceClaimStatus"]
    (made,) = await results(driver, status["resourceClaimName"])
    assert made["driver"] == DRIVER
    assert await reserved(driver) == [ClaimSizes().default // MIB]
