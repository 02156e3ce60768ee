"""Zone memory as an extended resource (docs/cluster/dra.md), counted by a real scheduler and kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from protectctl.__main__ import parser
from protectctl.cluster.generate import generate
from tests.support.cluster.api import PATIENCE, Object
from tests.support.cluster.claims import unscheduled
from tests.support.cluster.cluster import NODE, NODE_MEMORY, NODES, PODS, Cluster, pod
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node
from tests.support.manifests.applied import applied
from tests.support.manifests.sources import read
from tests.support.protect.daemons import Daemon
from tools.localnode import toml

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
GRANULE = 256 * MIB
EACH = 2
FITS = NODE_MEMORY // GRANULE // EACH
PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""The kubelet's folder of plugins, independent of its other files."""
RESOURCE = "zones.xenpod.dev/memory"
ASKING = {"resources": {"limits": {RESOURCE: str(EACH), "memory": "128Mi"}, "requests": {"memory": "1Mi"}}}
NAMESPACE = "/api/v1/namespaces/default"
LABEL = "xenpod.dev/zone-claims"
NOTE = "zones.xenpod.dev/granules"
CLASS = "xenpod-here"
PLATFORMS = """
[platforms.here]
handlers = ["xenpod"]
labels = {"kubernetes.io/hostname" = "localhost"}
taints = []
overhead = {memory = "96Mi"}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def driver(session_cluster: Cluster) -> AsyncIterator[Daemon]:
    """The driver in its mode for clusters without claims, and a node with granules.

    All tests share the driver: while the kubelet knows no plugin, the kubelet admits no pod that asks for
    granules.
    """
    cluster = session_cluster
    settings = {
        "node": NODE,
        "protect_socket": str(cluster.node.protectd.daemon.socket),
        "granules": {"size": "256MiB", "devices_dir": str(PLUGINS)},
    }
    config = cluster.folder / "granules.toml"
    config.write_text(toml.dumps(settings))
    daemon = Daemon("cluster.dra", config, PLUGINS / "xenpod.sock", cluster.folder / "granules.log")
    await daemon.start()
    try:
        await has(cluster, NODE_MEMORY // GRANULE)
        await probed(cluster)
        yield daemon
    finally:
        await cluster.tidy()
        await daemon.stop()


async def has(cluster: Cluster, count: int) -> None:
    """Wait until the node reports this number of granules."""
    said = str(count)
    await cluster.api.until(
        NODES, f"metadata.name={NODE}", lambda node: node["status"]["allocatable"].get(RESOURCE) == said
    )


async def probed(cluster: Cluster) -> None:
    """Wait until the kubelet admits pods with granules: the kubelet does not report the loss of a plugin."""
    async with asyncio.timeout(PATIENCE):
        for number in range(100):
            name = f"probe-{number}"
            await cluster.create(name, "sleep", "100000", container=ASKING)
            seen = await cluster.until(name, lambda one: one["status"]["phase"] in ("Running", "Failed"))
            await cluster.tidy()
            if seen["status"]["phase"] == "Running":
                return


async def filled(cluster: Cluster, count: int = FITS) -> list[str]:
    names = [f"granules-{number}" for number in range(count)]
    for name in names:
        await cluster.create(name, "sleep", "100000", container=ASKING)
    await cluster.started(*names)
    return names


async def test_node_is_filled_and_another_pod_waits_for_an_end(cluster: Cluster, driver: Daemon) -> None:
    names = await filled(cluster)
    assert len(await cluster.zones()) == FITS
    await cluster.create("waits", "sleep", "100000", container=ASKING)
    assert f"Insufficient {RESOURCE}" in await unscheduled(cluster, "waits")
    await cluster.api.delete(f"{PODS}/{names[0]}?gracePeriodSeconds=1")
    await cluster.started("waits")


async def test_pod_removed_by_force_leaves_its_granules_to_the_next(cluster: Cluster, driver: Daemon) -> None:
    """The scheduler sees free granules at once; the next zone starts after the end of the last zone."""
    names = await filled(cluster)
    await cluster.api.delete(f"{PODS}/{names[0]}?gracePeriodSeconds=0")
    await cluster.create("next", "sleep", "100000", container=ASKING)
    await cluster.started("next")
    async with asyncio.timeout(PATIENCE):
        while len(await cluster.zones()) > FITS:  # noqa: ASYNC110 - the kubelet stops the other pod
            await asyncio.sleep(0.1)


async def test_restarts_of_driver_and_kubelet_count_the_same(cluster: Cluster, driver: Daemon) -> None:
    await cluster.create("stays", "sleep", "100000", container=ASKING)
    await cluster.started("stays")
    driver.kill()
    await driver.restart()
    await cluster.use_kubelet(shipped=True)
    await has(cluster, NODE_MEMORY // GRANULE)
    await filled(cluster, FITS - 1)
    await cluster.create("more", "sleep", "100000", container=ASKING)
    assert f"Insufficient {RESOURCE}" in await unscheduled(cluster, "more")


@asynccontextmanager
async def counting(cluster: Cluster, folder: Path) -> AsyncIterator[None]:
    """In the default namespace the generated policy by which pods ask for granules."""
    (folder / "platforms.toml").write_text(PLATFORMS)
    words = ["classes", "granules", "--granule", "256Mi", "--to", str(folder / "made")]
    await generate(parser().parse_args(["generate", *words, "--platforms", str(folder / "platforms.toml")]))
    objects = [one for path in sorted((folder / "made").iterdir()) for one in read(path.read_text())]
    async with applied(cluster.api, objects):
        await cluster.api.patch(NAMESPACE, {"metadata": {"labels": {LABEL: "true"}}})
        try:
            async with asyncio.timeout(PATIENCE):  # a policy acts a moment after its creation
                while NOTE not in (await _asked(cluster))["metadata"].get("annotations", {}):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            yield
        finally:
            await cluster.tidy()
            await cluster.api.patch(NAMESPACE, {"metadata": {"labels": {LABEL: None}}})


async def _asked(cluster: Cluster, **container: Any) -> Object:
    """A pod of our class as the API server would make it."""
    body = pod("asked", "true", container=container, runtimeClassName=CLASS)
    found: Object = await cluster.api.post(f"{PODS}?dryRun=All&fieldValidation=Strict", body)
    return found


SIZED: list[tuple[Object, str]] = [
    ({}, "2 of 256Mi for 256Mi"),
    ({"resources": {"limits": {"memory": "100Mi"}}}, "1 of 256Mi for 196Mi"),
    ({"resources": {"limits": {RESOURCE: "7"}}}, "7 of 256Mi for 256Mi"),
]


async def test_pods_with_only_limits_are_counted(cluster: Cluster, driver: Daemon, tmp_path: Path) -> None:
    """Each zone is counted once: by its granules, and by no memory of dom0."""
    async with counting(cluster, tmp_path):
        for container, said in SIZED:
            made = await _asked(cluster, **container)
            assert made["metadata"]["annotations"][NOTE] == f"{said}; no memory is requested of dom0"
            [resources] = [one["resources"] for one in made["spec"]["containers"]]
            count = said.partition(" ")[0]
            assert resources["limits"][RESOURCE] == resources["requests"][RESOURCE] == count
            assert resources["requests"].get("memory", "0") == "0"
        limits = {"resources": {"limits": {"memory": "400Mi"}}}  # and the overhead: two granules
        names = [f"plain-{number}" for number in range(FITS)]
        for name in names:
            await cluster.create(name, "sleep", "1000", container=limits, runtimeClassName=CLASS)
        await cluster.started(*names)
        await cluster.create("last", "sleep", "1000", container=limits, runtimeClassName=CLASS)
        assert f"Insufficient {RESOURCE}" in await unscheduled(cluster, "last")
