"""Zone memory as an extended resource, by a device plugin on a real kubelet: each granule is reserved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from localnode import toml
from tests.support.cluster.api import PATIENCE
from tests.support.cluster.claims import Driver, unscheduled
from tests.support.cluster.cluster import NODE, NODES, PODS, controlled
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import CriNode, needs_node, pulled
from tests.support.protect.daemons import Daemon

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
RESOURCE = "xenpod.dev/zone-memory"
GRANULE = 128 * MIB
GRANULES = 8
EACH = 2
"""Granules of a pod, which has room in them for its limits and the overhead."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plugin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Driver]:
    """A node whose zones have only what is reserved, with the device plugin, and a kubelet that knows it."""
    folder = tmp_path_factory.mktemp("granules")
    node = CriNode(folder / "n")
    node.protectd.configure(memory={"total": GRANULES * GRANULE, "reservations_only": True})
    await node.start()
    try:
        async with pulled(node, folder / "registry"), controlled(node, folder) as cluster:
            daemon = _daemon(folder, node, cluster.kubeconfig, cluster.folder / "root")
            await daemon.start()
            try:
                driver = Driver(cluster, daemon)
                await offered(driver, GRANULES)
                yield driver
                await cluster.tidy()
            finally:
                await daemon.stop()
    finally:
        await node.close()
    await node.nothing_left()


def _daemon(folder: Path, node: CriNode, kubeconfig: Path, root: Path) -> Daemon:
    granules = {
        "enabled": True,
        "size": GRANULE,
        "check_interval": "200ms",
        "pod_resources_socket": str(root / "pod-resources" / "kubelet.sock"),
    }
    settings = {
        "node": NODE,
        "kubeconfig": str(kubeconfig),
        "protect_socket": str(node.protectd.daemon.socket),
        "granules": granules,
    }
    config = folder / "dra.toml"
    config.write_text(toml.dumps(settings))
    socket = Path("/var/lib/kubelet/device-plugins/zones.xenpod.dev.sock")  # no kubelet has it elsewhere
    return Daemon("dra", config, socket, folder / "dra.log")


@pytest_asyncio.fixture(loop_scope="session")
async def driver(plugin: Driver) -> AsyncIterator[Driver]:
    yield plugin
    await plugin.cluster.tidy()
    await reserved(plugin, 0)


async def offered(driver: Driver, count: int) -> None:
    """Wait until the scheduler sees so many granules."""

    def has(node: Any) -> bool:
        return bool(node["status"].get("allocatable", {}).get(RESOURCE) == str(count))

    await driver.cluster.api.until(NODES, f"metadata.name={NODE}", has)


async def reserved(driver: Driver, count: int) -> None:
    """Wait until there are so many reservations; the kubelet tells nobody of what it takes back."""
    found: Any = None
    try:
        async with asyncio.timeout(PATIENCE):
            while len(found := await driver.reservations()) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"there are still {found}") from None


async def create(driver: Driver, name: str, granules: int = EACH) -> None:
    limits = {"memory": "64Mi", RESOURCE: str(granules)}
    container = {"resources": {"limits": limits, "requests": {"memory": "0"}}}
    await driver.cluster.create(name, "sleep", "1000", container=container)


async def agree(driver: Driver, *names: str) -> None:
    """Check that each pod has its granules reserved, and its zone in them, and that nothing else is."""
    pods = [await driver.cluster.api.get(f"{PODS}/{name}") for name in names]
    found = (await driver.reservations()).values()
    assert sorted(tuple(one.pod_uids) for one in found) == sorted((pod["metadata"]["uid"],) for pod in pods)
    assert {one.memory_bytes + one.overhead_bytes for one in found} == {EACH * GRANULE}
    zones = {zone.id: zone.resources.memory_bytes for zone in await driver.cluster.zones()}
    assert zones == {one.zone_id: one.memory_bytes for one in found}


async def test_the_node_is_filled_and_one_more_waits(driver: Driver) -> None:
    names = [f"full-{number}" for number in range(GRANULES // EACH)]
    for name in names:
        await create(driver, name)
    await driver.cluster.started(*names)
    await agree(driver, *names)
    await create(driver, "waiting")
    assert f"Insufficient {RESOURCE}" in await unscheduled(driver, "waiting")
    await driver.cluster.api.delete(f"{PODS}/{names[0]}?gracePeriodSeconds=0")
    await driver.cluster.started("waiting")
    await reserved(driver, len(names))
    await agree(driver, "waiting", *names[1:])


async def test_a_pod_without_granules_gets_no_zone(driver: Driver) -> None:
    await driver.cluster.create("none", "sleep", "1000")
    await driver.cluster.event("none", "nothing is reserved for its pod")


async def test_a_pod_that_is_larger_than_its_granules_is_refused_with_the_numbers(driver: Driver) -> None:
    await create(driver, "large", granules=1)
    await driver.cluster.event("large", "it asks for 160 MiB of memory, reserved for its pod are 128 MiB")


@pytest.mark.parametrize("victim", ["driver", "protectd"])
async def test_a_kill_loses_and_doubles_nothing(driver: Driver, victim: str) -> None:
    await create(driver, "kept")
    await create(driver, "ending")
    await driver.cluster.started("kept", "ending")
    daemon = {"driver": driver.daemon, "protectd": driver.cluster.node.protectd.daemon}[victim]
    await daemon.crash()
    await driver.cluster.api.delete(f"{PODS}/ending?gracePeriodSeconds=0")
    await daemon.start()
    await reserved(driver, 1)
    await offered(driver, GRANULES)
    await create(driver, "later")
    await driver.cluster.started("kept", "later")
    await agree(driver, "kept", "later")


async def test_another_kubelet_is_told_again(driver: Driver) -> None:
    await create(driver, "kept")
    await driver.cluster.started("kept")
    await driver.cluster.use_kubelet(shipped=True)
    await offered(driver, GRANULES)
    await create(driver, "later")
    await driver.cluster.started("kept", "later")
    await agree(driver, "kept", "later")
