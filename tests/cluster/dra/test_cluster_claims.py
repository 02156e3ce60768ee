"""docs/cluster/dra.md on a real cluster: what a real scheduler and kubelet make of claims of zone memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cluster.dra.config import ClaimSizes
from cluster.dra.slices.document import devices
from daemonkit.quantity import whole
from tests.support.cluster.api import ApiRefused
from tests.support.cluster.claims import (
    CLAIMS,
    DRIVER,
    RETRIED,
    TEMPLATES,
    Driver,
    claim,
    driving,
    request,
    template,
    unscheduled,
)
from tests.support.cluster.cluster import NODE_MEMORY, PODS, Cluster
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node
from tests.support.waiting import until
from xenpod_proto.protect.v1.reservations_pb2 import ListReservationsRequest

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
SIZE = 512 * MIB
FITS = NODE_MEMORY // SIZE
LIMITS = {"resources": {"limits": {"memory": "128Mi"}, "requests": {"memory": "1Mi"}}}


@pytest_asyncio.fixture(loop_scope="session")
async def driver(cluster: Cluster) -> AsyncIterator[Driver]:
    async with driving(cluster) as made:
        await cluster.api.post(TEMPLATES, template("half", request(f"{SIZE // MIB}Mi")))
        yield made
        await cluster.tidy()
        await cluster.api.delete(CLAIMS)
        await cluster.api.delete(f"{TEMPLATES}/half")
        await made.agree()


async def create(driver: Driver, name: str, **more: str) -> None:
    """A pod that runs until its removal, with a claim from the template, or with the named claim."""
    named = {"resourceClaimName": more["claim"]} if "claim" in more else {"resourceClaimTemplateName": "half"}
    claims = [{"name": "zone", **named}]
    await driver.cluster.create(name, "sleep", "1000", container=LIMITS, resourceClaims=claims)


async def memory_of(driver: Driver, name: str) -> int:
    """Of the pod's zone, in bytes."""
    uid = (await driver.cluster.api.get(f"{PODS}/{name}"))["metadata"]["uid"]
    async with driver.cluster.node.protectd.clients() as clients:
        answer = await clients.reservations.ListReservations(ListReservationsRequest())
        (zone_id,) = {one.zone_id for one in answer.reservations if uid in one.pod_uids}
    (zone,) = [zone for zone in await driver.cluster.zones() if zone.id == zone_id]
    return zone.resources.memory_bytes


async def test_node_is_filled_and_another_pod_waits_for_an_end(driver: Driver) -> None:
    names = [f"full-{number}" for number in range(FITS + 1)]
    for name in names[:-1]:
        await create(driver, name)
    await driver.cluster.started(*names[:-1], patience=RETRIED)
    found = await driver.reservations()
    assert [one.memory_bytes + one.overhead_bytes for one in found.values()] == [SIZE] * FITS
    assert len({one.zone_id for one in found.values()}) == FITS
    await create(driver, names[-1])
    assert "cannot allocate all claims" in await unscheduled(driver.cluster, names[-1])
    await driver.cluster.api.delete(f"{PODS}/{names[0]}?gracePeriodSeconds=0")
    await driver.cluster.started(names[-1])
    await driver.agree()


async def test_the_zone_is_as_large_as_the_claim(driver: Driver) -> None:
    await create(driver, "sized")
    await driver.cluster.started("sized")
    (one,) = (await driver.reservations()).values()
    assert one.memory_bytes + one.overhead_bytes == SIZE
    assert await memory_of(driver, "sized") == one.memory_bytes


async def test_claims_change_nothing_in_the_slice(driver: Driver) -> None:
    before = (await driver.slice())["metadata"]["resourceVersion"]
    await create(driver, "quiet")
    await driver.cluster.started("quiet")
    await driver.cluster.create("plain", "sleep", "1000", container=LIMITS)  # without a claim
    await driver.cluster.started("plain")
    async with asyncio.timeout(60):
        while (seen := await driver.slice())["metadata"]["resourceVersion"] == before:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    (device,) = devices(seen)
    (plain,) = [zone for zone in await driver.cluster.zones() if zone.name == "default/plain"]
    assert whole(device["capacity"]["memory"]["value"]) <= NODE_MEMORY - plain.resources.memory_bytes
    assert seen["spec"]["pool"]["generation"] >= 2


async def test_two_claims_of_a_pod_are_added_up(driver: Driver) -> None:
    for name in ("one", "two"):
        await driver.cluster.api.post(CLAIMS, claim(name, request("256Mi")))
    claims = [{"name": name, "resourceClaimName": name} for name in ("one", "two")]
    await driver.cluster.create("both", "sleep", "1000", container=LIMITS, resourceClaims=claims)
    await driver.cluster.started("both")
    found = (await driver.reservations()).values()
    assert len(found) == 2
    assert await memory_of(driver, "both") == sum(one.memory_bytes for one in found)


async def test_pod_larger_than_its_claim_is_refused_with_the_numbers(driver: Driver) -> None:
    await driver.cluster.api.post(CLAIMS, claim("small", request("100Mi")))
    await create(driver, "large", claim="small")
    said = await driver.cluster.event("large", "FailedPrecondition")
    assert "reserved for its pod are" in said and "MiB" in said


async def test_claim_of_two_pods_belongs_to_the_first(driver: Driver) -> None:
    """The kubelet prepares the claim once: a later pod has a zone from the remaining memory."""
    await driver.cluster.api.post(CLAIMS, claim("shared", request("512Mi")))
    for name in ("first", "second"):
        await create(driver, name, claim="shared")
        await driver.cluster.started(name)
    (one,) = (await driver.reservations()).values()
    first = (await driver.cluster.api.get(f"{PODS}/first"))["metadata"]["uid"]
    assert list(one.pod_uids) == [first]
    assert len({zone.id for zone in await driver.cluster.zones()} - {one.zone_id}) == 1


async def test_admin_access_reserves_nothing(driver: Driver) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await driver.cluster.api.patch("/api/v1/namespaces/default", label)
    one = claim("admin", {"name": "zone", "exactly": {"deviceClassName": "zone-memory", "adminAccess": True}})
    await driver.cluster.api.post(CLAIMS, one)
    await create(driver, "admin", claim="admin")
    await driver.cluster.started("admin")
    assert await driver.reservations() == {}


async def test_claim_deleted_under_its_pod_is_reserved_until_the_pod_ends(
    driver: Driver,
) -> None:
    await driver.cluster.api.post(CLAIMS, claim("gone", request("512Mi")))
    await create(driver, "holder", claim="gone")
    await driver.cluster.started("holder")
    await driver.cluster.api.delete(f"{CLAIMS}/gone")
    assert len(await driver.reservations()) == 1
    await driver.cluster.api.delete(f"{PODS}/holder?gracePeriodSeconds=0")
    await until(driver.has_no_reservation)


@pytest.mark.parametrize("size", ["0", "-1Gi", "lots"])
async def test_invalid_size_is_refused_and_small_size_is_rounded_up(driver: Driver, size: str) -> None:
    """No quantity is refused; small sizes are rounded up to the minimum, which is too small for the pod."""
    name = f"odd-{size.strip('-').lower()}"  # events of another pod with the same name stay
    try:
        await driver.cluster.api.post(CLAIMS, claim(name, request(size)))
    except ApiRefused as refused:
        assert refused.status in (400, 422) and size == "lots"
        return
    await create(driver, name, claim=name)
    await driver.cluster.event(name, "reserved for its pod are")
    await driver.agree()
    (one,) = (await driver.reservations()).values()
    assert one.memory_bytes + one.overhead_bytes == ClaimSizes().minimum


async def test_more_than_the_node_has_stays_pending(driver: Driver) -> None:
    await driver.cluster.api.post(CLAIMS, claim("huge", request("900Gi")))
    await create(driver, "huge", claim="huge")
    assert "cannot allocate all claims" in await unscheduled(driver.cluster, "huge")


@pytest.mark.parametrize("victim", ["driver", "protectd", "cri"])
async def test_a_kill_loses_and_doubles_nothing(driver: Driver, victim: str) -> None:
    names = [f"kept-{number}" for number in range(3)]
    for name in names:
        await create(driver, name)
    await driver.cluster.started(*names)
    node = driver.cluster.node
    daemon = {"driver": driver.daemon, "protectd": node.protectd.daemon, "cri": node.daemon}[victim]
    await daemon.crash()
    await create(driver, "later")
    await daemon.start()
    await driver.cluster.started("later", *names)
    assert len(await driver.reservations()) == 4
    await driver.agree()
    assert (await driver.slice())["spec"]["driver"] == DRIVER
