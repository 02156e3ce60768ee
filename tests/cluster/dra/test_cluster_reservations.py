"""Claims of zone memory on a real cluster: a full node, daemons that are killed in every order, a reboot."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.cluster.api import PATIENCE
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
from tests.support.cluster.cluster import NODE, NODE_MEMORY, PODS, Cluster
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cluster.reboot import killed, reboot, revived
from tests.support.cri.cri_daemons import needs_node

pytestmark = [
    pytest.mark.root,
    needs_node,
    needs_kubernetes,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

MIB = 1 << 20
SIZE = 102 * MIB
"""Of each claim: thirty fill the node."""
FITS = NODE_MEMORY // SIZE
LIMITS = {"resources": {"limits": {"memory": "6Mi"}, "requests": {"memory": "1Mi"}}}
DAEMONS = ("kubelet", "driver", "protectd", "cri")


@pytest_asyncio.fixture(loop_scope="session")
async def driver(cluster: Cluster) -> AsyncIterator[Driver]:
    async with driving(cluster) as made:
        await cluster.api.post(TEMPLATES, template("each", request(f"{SIZE // MIB}Mi")))
        yield made
        await cluster.tidy()
        await cluster.api.delete(CLAIMS)
        await cluster.api.delete(f"{TEMPLATES}/each")
        await made.agree()


async def create(driver: Driver, name: str, **spec: Any) -> None:
    """A pod that runs until its removal, with a claim of its own."""
    claims = [{"name": "zone", "resourceClaimTemplateName": "each"}]
    spec = {"restartPolicy": "Always", "resourceClaims": claims, **spec}
    await driver.cluster.create(name, "sleep", "100000", container=LIMITS, **spec)


async def remove(driver: Driver, name: str) -> None:
    await driver.cluster.api.delete(f"{PODS}/{name}?gracePeriodSeconds=1")


async def gone(driver: Driver, *names: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while {pod["metadata"]["name"] for pod in await pods(driver)}.intersection(names):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def pods(driver: Driver) -> list[Any]:
    return list((await driver.cluster.api.get(PODS))["items"])


async def containers(driver: Driver) -> dict[str, str]:
    """The container of each pod, by the pod's name."""
    found = await pods(driver)
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["containerID"] for pod in found}


async def in_agreement(driver: Driver, count: int) -> None:
    """Wait until claims, ledger, zones and slice agree on this number of pods.

    The zone of a removed pod ends a little later; after kills, when the next kubelet finds the zone.
    """
    await driver.agree()
    said: object = None
    try:
        async with asyncio.timeout(PATIENCE):
            while (said := await books(driver, count)) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"they do not agree: {said}") from None
    await driver.published(NODE_MEMORY)


async def books(driver: Driver, count: int) -> object:
    """The differences; None: no difference."""
    found = (await driver.reservations()).values()
    sizes = [one.memory_bytes + one.overhead_bytes for one in found]
    if sizes != [SIZE] * count or len({uid for one in found for uid in one.pod_uids}) != count:
        return sizes
    zones, having = {zone.id for zone in await driver.cluster.zones()}, {one.zone_id for one in found}
    return None if zones == having and len(zones) == count else zones ^ having


async def test_thirty_claims_fill_the_node_and_another_waits_for_an_end(driver: Driver) -> None:
    names = [f"full-{number}" for number in range(FITS)]
    assert FITS == 30
    for name in names:
        await create(driver, name)
    await driver.cluster.started(*names, patience=RETRIED)
    await in_agreement(driver, FITS)
    await create(driver, "waits")
    assert "cannot allocate all claims" in await unscheduled(driver.cluster, "waits")
    assert (await driver.cluster.api.get(f"{PODS}/waits"))["status"]["phase"] == "Pending"
    await remove(driver, names[7])
    await driver.cluster.started("waits")
    await in_agreement(driver, FITS)


async def test_no_order_of_kills_loses_or_doubles_a_reservation(driver: Driver) -> None:
    """Twenty pods with claims; in each of the orders a further pod is starting, and a pod is ending."""
    names = [f"kept-{number}" for number in range(19)]
    for name in (*names, "coming-0"):
        await create(driver, name)
    await driver.cluster.started(*names, "coming-0")
    before = await containers(driver)
    orders = list(itertools.permutations(DAEMONS))
    for number, order in enumerate(orders, 1):
        await create(driver, f"coming-{number}")
        await remove(driver, f"coming-{number - 1}")
        for daemon in order:
            await killed(driver, daemon)
        await revived(driver, order)
    last = f"coming-{len(orders)}"
    await gone(driver, *(f"coming-{number}" for number in range(len(orders))))
    await driver.cluster.started(*names, last)
    await in_agreement(driver, 20)
    after = await containers(driver)
    assert {name: after[name] for name in names} == {name: before[name] for name in names}, "none restarted"


async def test_reservations_survive_a_reboot(driver: Driver) -> None:
    """All zones and all of /run are gone; the pods come again, in the memory that is theirs."""
    names = [f"back-{number}" for number in range(20)]
    for name in names:
        await create(driver, name)
    await driver.cluster.started(*names)
    before, reserved = await containers(driver), await driver.reservations()
    await reboot(driver)
    for name in names:
        await driver.cluster.until(name, lambda pod, was=before[name]: runs_anew(pod, was))  # type: ignore[misc]
    await in_agreement(driver, 20)
    after = await driver.reservations()
    made = {uid: one.created_at_ns for uid, one in reserved.items()}
    assert {uid: one.created_at_ns for uid, one in after.items()} == made, "they are the same ones"


def runs_anew(pod: Any, container: str) -> bool:
    """Whether the pod's container runs, and is a new container."""
    (status,) = pod["status"]["containerStatuses"]
    return "running" in status["state"] and status["containerID"] != container


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"driver": DRIVER, "pool": "node-2"}, "is of pool node-2, this node's is localhost"),
        ({"driver": "gpu.example.com", "pool": NODE}, "gpu.example.com"),
    ],
    ids=["node", "driver"],
)
async def test_claim_allocated_by_hand_elsewhere_is_refused(
    driver: Driver, result: dict[str, str], said: str
) -> None:
    await driver.cluster.api.post(CLAIMS, claim("astray", request("102Mi")))
    claims = [{"name": "zone", "resourceClaimName": "astray"}]
    await create(driver, "misled", nodeName=NODE, resourceClaims=claims)
    uid = (await driver.cluster.api.get(f"{PODS}/misled"))["metadata"]["uid"]
    allocated = {"request": "zone", "device": "memory", **result}
    status = {
        "allocation": {"devices": {"results": [allocated]}},
        "reservedFor": [{"resource": "pods", "name": "misled", "uid": uid}],
    }
    await driver.cluster.api.patch(f"{CLAIMS}/astray/status", {"status": status})
    await driver.cluster.event("misled", said)
    assert await driver.reservations() == {}
    assert await driver.cluster.zones() == []
