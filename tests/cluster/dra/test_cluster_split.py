"""docs/cluster/dra.md, Modes: what a real scheduler and kubelet make of a device for each claim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cluster.dra.slices.document import Document, devices
from daemonkit.quantity import whole
from tests.support.cluster.claims import CLAIMS, DRIVER, TEMPLATES, Driver, driving, request
from tests.support.cluster.cluster import NODE_MEMORY, PODS, Cluster
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cluster.reboot import killed, reboot, revived
from tests.support.cri.cri_daemons import needs_node
from tests.support.waiting import until

pytestmark = [
    pytest.mark.root,
    needs_node,
    needs_kubernetes,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

MIB = 1 << 20
SIZE = 512 * MIB
FITS = NODE_MEMORY // SIZE
DAEMONS = ("kubelet", "driver", "protectd", "cri")
LIMITS = {"resources": {"limits": {"memory": "128Mi"}, "requests": {"memory": "1Mi"}}}


def spec(**parameters: str) -> dict[str, object]:
    """Of a claim of 512 MiB, in the words of both modes."""
    enough = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("512Mi")) >= 0'
    kind = {"apiVersion": "xenpod.dev/v1alpha1", "kind": "ZoneResources", "memory": "512Mi"}
    opaque = {"driver": DRIVER, "parameters": kind | parameters}
    wanted = request("512Mi", selectors=[{"cel": {"expression": enough}}])
    return {"devices": {"requests": [wanted], "config": [{"opaque": opaque}]}}


@pytest_asyncio.fixture(loop_scope="session")
async def driver(cluster: Cluster) -> AsyncIterator[Driver]:
    async with driving(cluster, mode="split", split_interval="200ms") as made:
        await cluster.api.post(TEMPLATES, {"metadata": {"name": "half"}, "spec": {"spec": spec()}})
        yield made
        await cluster.tidy()
        await cluster.api.delete(CLAIMS)
        await cluster.api.delete(f"{TEMPLATES}/half")
        await made.agree()


async def create(driver: Driver, name: str, **claim: str) -> None:
    """A pod that runs until its removal, with a claim from the template, or with the named claim."""
    claims = [{"name": "zone", **(claim or {"resourceClaimTemplateName": "half"})}]
    more = {"restartPolicy": "Always", "resourceClaims": claims}
    await driver.cluster.create(name, "sleep", "100000", container=LIMITS, **more)


def claimed(found: Document) -> dict[str, int]:
    return {
        one["name"]: whole(one["capacity"]["memory"]["value"])
        for one in devices(found)
        if one["attributes"]["claimed"]["bool"]
    }


async def test_each_claim_gets_its_own_device_until_the_node_is_full(driver: Driver) -> None:
    names = [f"split-{number}" for number in range(FITS + 1)]
    for name in names:
        await create(driver, name)
    async with asyncio.timeout(120):
        while len(found := await driver.reservations()) < FITS:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert [one.memory_bytes + one.overhead_bytes for one in found.values()] == [SIZE] * FITS
    async with asyncio.timeout(60):
        while len(there := claimed(await driver.slice())) < FITS:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert there == {one.origin: SIZE for one in found.values()}
    assert len(devices(await driver.slice())) == FITS  # nothing is left for another
    allocated = {
        uid: result["device"]
        for uid, one in (await driver.claims()).items()
        for result in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    }
    assert allocated == {uid: one.origin for uid, one in found.items()}
    pods = (await driver.cluster.api.get(PODS))["items"]
    (waiting,) = [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]
    running = next(name for name in names if name != waiting)
    await driver.cluster.started(*(name for name in names if name != waiting))
    await driver.cluster.api.delete(f"{PODS}/{running}?gracePeriodSeconds=0")
    await driver.cluster.started(waiting)
    await driver.agree()


async def test_restarts_and_a_reboot_leave_each_claim_its_device(driver: Driver) -> None:
    """While the daemons are killed a pod comes and another one goes."""
    names = ["stays-0", "stays-1", "stays-2"]
    for name in (*names, "coming-0"):
        await create(driver, name)
    await driver.cluster.started(*names, "coming-0")
    kept = [await origin(driver, name) for name in names]
    for number in range(1, len(DAEMONS) + 1):
        await create(driver, f"coming-{number}")
        await driver.cluster.api.delete(f"{PODS}/coming-{number - 1}?gracePeriodSeconds=1")
        order = DAEMONS[number - 1 :] + DAEMONS[: number - 1]
        for daemon in order:
            await killed(driver, daemon)
        await revived(driver, order)
    last = f"coming-{len(DAEMONS)}"
    await driver.cluster.started(*names, last)
    await driver.agree()
    assert [await origin(driver, name) for name in names] == kept
    await shown(driver, 4)
    await reboot(driver)
    await driver.agree()
    assert [await origin(driver, name) for name in names] == kept, "a reservation outlives its zone"
    await shown(driver, 4)


async def origin(driver: Driver, name: str) -> str:
    """The device of a pod's claim."""
    uid = (await driver.cluster.api.get(f"{PODS}/{name}"))["metadata"]["uid"]
    (found,) = [one.origin for one in (await driver.reservations()).values() if uid in one.pod_uids]
    return found


async def shown(driver: Driver, count: int) -> None:
    """Wait until the slice has a device for each of this number of claims, and a device with the rest."""

    async def holds() -> bool:
        there = {one.origin: SIZE for one in (await driver.reservations()).values()}
        for one in await driver.slices():  # none, for a moment after a kubelet has started
            sizes = [whole(device["capacity"]["memory"]["value"]) for device in devices(one)]
            if len(there) == count and claimed(one) == there and sum(sizes) == NODE_MEMORY:
                return True
        return False

    await until(holds)


async def test_a_bad_claim_is_told_and_keeps_nobody_from_the_node(driver: Driver) -> None:
    await driver.cluster.api.post(CLAIMS, {"metadata": {"name": "bad"}, "spec": spec(colour="red")})
    await create(driver, "bad-pod", resourceClaimName="bad")
    for about in ("bad", "bad-pod"):
        assert "unknown key 'colour'" in await driver.cluster.event(about, "read parameters of claim")
    assert await driver.reservations() == {}
    await create(driver, "good-pod")
    await driver.cluster.started("good-pod")
    await driver.cluster.api.delete(f"{PODS}/bad-pod?gracePeriodSeconds=0")
