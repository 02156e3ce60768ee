"""Today's daemons on files of an earlier release: state directories after a reboot, and running pods.

``XENPOD_BEFORE=<checkout>`` names the checkout whose daemons make the running pods; the checkout has to be
built (``make setup``). ``tests/support/cri/stored_state.py`` writes the stored state.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from tests.support.cri import stored_state as stored
from tests.support.cri.cri_daemons import CriNode, container_status, needs_node
from tests.support.protect.daemons import ROOT
from tests.support.waiting import until
from tools.localnode import images, registry
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as protect

pytestmark = [pytest.mark.root, needs_node]

ARCHIVES = sorted((ROOT / "tests/data").glob("state-*.tar.xz"))
BEFORE = os.environ.get("XENPOD_BEFORE", "")
ENDED = ("state", "finishedAt", "exitCode", "reason", "message")
"""Fields of a container that change at its end."""


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
async def kept(request: pytest.FixtureRequest) -> AsyncIterator[stored.Kept]:
    copy = await asyncio.to_thread(stored.unpack, request.param)
    yield copy
    shutil.rmtree(copy.folder)


@pytest.fixture
async def node(kept: stored.Kept) -> AsyncIterator[CriNode]:
    """Today's daemons, started on the copy."""
    node = CriNode(kept.folder)
    await node.start()
    try:
        yield node
    finally:
        await node.close()
        await node.nothing_left()


@pytest.fixture
async def client(node: CriNode) -> AsyncIterator[Client]:
    async with node.client() as client:
        yield client


def without(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in keys}


def test_small_stored_states_of_releases_exist() -> None:
    assert ARCHIVES and all(path.stat().st_size < 100_000 for path in ARCHIVES)


async def test_next_pod_can_be_made_on_old_state(tmp_path: Path) -> None:
    archive = tmp_path / "state-next.tar.xz"
    await stored.make(archive, ROOT)
    copy = await asyncio.to_thread(stored.unpack, archive)
    try:
        assert len(copy.expected["images"]) == 1 and len(copy.expected["pods"]) == 2
    finally:
        shutil.rmtree(copy.folder)


async def test_every_record_is_there_and_complete(kept: stored.Kept, client: Client) -> None:
    said, names = await stored.shown(client), kept.expected["names"]
    assert said["images"] == kept.expected["images"] and len(said["images"]) == 1
    assert said["pods"].keys() == kept.expected["pods"].keys() == {names["runs"], names["stopped"]}
    for pod, before in kept.expected["pods"].items():
        assert said["pods"][pod].get("state", "SANDBOX_READY") == "SANDBOX_NOTREADY"
        assert without(said["pods"][pod], "state", "network") == without(before, "state", "network")
    assert said["containers"].keys() == kept.expected["containers"].keys()
    for container, before in kept.expected["containers"].items():
        assert without(said["containers"][container], *ENDED) == without(before, *ENDED)


async def test_ends_in_old_state_are_known(kept: stored.Kept, client: Client) -> None:
    names, before = kept.expected["names"], kept.expected["containers"]
    for name in ("ended", "was stopped"):
        status = MessageToDict(await container_status(client, names[name]))
        assert status == before[names[name]], name
    assert (before[names["ended"]]["exitCode"], before[names["was stopped"]]["exitCode"]) == (3, 137)


async def test_running_containers_have_ended_with_their_zone(kept: stored.Kept, client: Client) -> None:
    for name in ("serves", "created"):
        status = await container_status(client, kept.expected["names"][name])
        assert status.state == cri.CONTAINER_EXITED, name
        assert status.exit_code != 0 and status.finished_at >= status.created_at


async def test_image_of_the_earlier_release_runs_without_a_pull(node: CriNode, client: Client) -> None:
    """Without a pull: no registry is there."""
    config = stored.pod_config(node, "new")
    pod = await stored.run_pod(client, config)
    container = await stored.started(client, pod, config, "main", stored.ENDS)
    assert (await stored.exited(client, container)).exit_code == 3
    log = node.logs / "new" / "main.log"
    assert [line.split()[1:] for line in log.read_text().splitlines()] == [["stdout", "F", "ended"]]


async def test_pods_of_before_can_be_replaced(kept: stored.Kept, node: CriNode, client: Client) -> None:
    """As the kubelet does after a reboot: the same pod with the next attempt, then the old pod goes."""
    old = kept.expected["names"]["runs"]
    config = stored.pod_config(node, "runs")
    config.metadata.attempt += 1
    pod = await stored.run_pod(client, config)
    await stored.started(client, pod, config, "serves", stored.SERVES)
    await client.remove_pod(old)
    assert sorted(await client.pods()) == sorted([pod, kept.expected["names"]["stopped"]])
    left = (await client.runtime.ListContainers(cri.ListContainersRequest())).containers
    assert {one.pod_sandbox_id for one in left} == {pod, kept.expected["names"]["stopped"]}


async def test_protectd_has_forgotten_no_zone(kept: stored.Kept, node: CriNode, client: Client) -> None:
    """xenpod-cri knows the zone that ran; the zone's remains go with its pod."""
    async with node.protectd.clients() as clients:
        listed = (await clients.zones.ListZones(protect.ListZonesRequest())).zones
        assert [zone.state for zone in listed] == [protect.ZONE_STATE_DEAD]
        assert listed[0].name and listed[0].mode == protect.ZONE_MODE_PV, "as it was made"
        await client.remove_pod(kept.expected["names"]["runs"])
        assert not (await clients.zones.ListZones(protect.ListZonesRequest())).zones


@pytest.fixture(params=["upgraded", "rolled back"])
async def checkouts(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """The checkouts of the daemons that make the pods and agents, and of the daemons that find them."""
    found = (Path(BEFORE), ROOT)
    return found if request.param == "upgraded" else (found[1], found[0])


@pytest.fixture
async def before(checkouts: tuple[Path, Path]) -> AsyncIterator[CriNode]:
    """A node whose daemons are of the first checkout, with the image."""
    folder = await asyncio.to_thread(stored.new_folder)
    node = CriNode(folder, checkout=checkouts[0])
    await node.start()
    try:
        yield node
        await node.close()
        await node.nothing_left()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(not BEFORE, reason="XENPOD_BEFORE names no other checkout")
@pytest.mark.parametrize("ended", ["killed", "stopped"])
async def test_pods_run_on_when_the_daemons_are_replaced(
    before: CriNode, checkouts: tuple[Path, Path], ended: str
) -> None:
    """Containers go on, their ends and output are told, execs and removal work; nothing is left."""
    async with registry.serve_registry(before.folder / "registry") as address:
        images_of(before, address)
        async with before.client() as client:
            await client.pull("registry.test/busybox:1")
            pod = await client.run_pod("runs")
            script = "while [ ! -e /end ]; do echo tick; usleep 20000; done; echo last; exit 7"
            ends = await client.create(pod, "registry.test/busybox:1", ["sh", "-c", script], "ends")
            await client.start(ends)
            waits = await client.create(pod, "registry.test/busybox:1", ["sleep", "1000"], "waits")
            then = await stored.shown(client)
    for daemon in (before.daemon, before.protectd.daemon):
        await (daemon.crash() if ended == "killed" else daemon.stop())
    lines = len(client.log(pod, "ends").read_text().splitlines())
    others = CriNode(before.folder, checkout=checkouts[1])
    before.daemon, before.protectd = others.daemon, others.protectd
    await others.start()
    async with others.client() as client:
        now = await stored.shown(client)
        assert without(now["containers"][ends], "state") == without(then["containers"][ends], "state")
        states = {one: (await container_status(client, one)).state for one in (ends, waits)}
        assert states == {ends: cri.CONTAINER_RUNNING, waits: cri.CONTAINER_CREATED}
        await client.start(waits)
        assert (await client.exec(waits, "echo", "here")).stdout == b"here\n"
        await until(lambda: len(client.log(pod, "ends").read_text().splitlines()) > lines)
        await client.exec(ends, "touch", "/end")
        assert (await stored.exited(client, ends)).exit_code == 7
        said = [line.split(" ", 3)[3] for line in client.log(pod, "ends").read_text().splitlines()]
        assert said == ["tick"] * (len(said) - 1) + ["last"]


def images_of(node: CriNode, address: str) -> None:
    """busybox, in the node's registry."""
    images.push(address, "busybox:1", images.busybox())
    registry.mirror(node.certs, "registry.test", address)
