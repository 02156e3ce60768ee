"""The driver on a real cluster: killed in a call, away, twice on a node, fed with garbage, out of room."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cluster.dra.slices.document import devices
from tests.support.cluster.api import PATIENCE
from tests.support.cluster.claims import (
    CLAIMS,
    DRIVER,
    SLICES,
    TEMPLATES,
    Driver,
    driving,
    instance,
    request,
    template,
    unscheduled,
)
from tests.support.cluster.cluster import PODS, Cluster
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node
from tests.support.protect.daemons import DaemonFailed

pytestmark = [
    pytest.mark.root,
    needs_node,
    needs_kubernetes,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

MEMORY = {"limits": {"memory": "128Mi"}, "requests": {"memory": "1Mi"}}


@pytest_asyncio.fixture(loop_scope="session")
async def driver(cluster: Cluster) -> AsyncIterator[Driver]:
    async with driving(cluster) as made:
        await cluster.api.post(TEMPLATES, template("half", request("512Mi")))
        yield made
        await cluster.tidy()
        await cluster.api.delete(CLAIMS)
        await cluster.api.delete(f"{TEMPLATES}/half")
        await made.agree()


async def create(driver: Driver, name: str) -> None:
    """A pod whose container has the claim: the container's status has the device's health."""
    claims = [{"name": "zone", "resourceClaimTemplateName": "half"}]
    container = {"resources": {**MEMORY, "claims": [{"name": "zone"}]}}
    await driver.cluster.create(name, "sleep", "1000", container=container, resourceClaims=claims)


async def reserved_once(driver: Driver, *names: str) -> None:
    """Each pod has one reservation, and no other reservation exists."""
    await driver.agree()
    uids = [(await driver.cluster.api.get(f"{PODS}/{name}"))["metadata"]["uid"] for name in names]
    found = [list(one.pod_uids) for one in (await driver.reservations()).values()]
    assert sorted(found) == sorted([uid] for uid in uids)


@pytest.mark.parametrize("step", ["prepare-claim.read", "prepare-claim.reserved"])
async def test_driver_killed_during_a_prepare_completes_the_prepare(driver: Driver, step: str) -> None:
    await driver.daemon.stop()
    driver.configure(faults={"kill_at": step})
    await driver.daemon.start()
    await create(driver, "interrupted")
    assert await driver.daemon.ended(PATIENCE) == -signal.SIGKILL
    assert len(await driver.reservations()) == (step == "prepare-claim.reserved")
    driver.configure()
    await driver.daemon.start()
    await driver.cluster.started("interrupted")
    await reserved_once(driver, "interrupted")


async def test_driver_killed_during_an_unprepare_completes_the_unprepare(driver: Driver) -> None:
    await driver.daemon.stop()
    driver.configure(faults={"kill_at": "unprepare-claim.released"})
    await driver.daemon.start()
    for name in ("stays", "goes"):
        await create(driver, name)
    await driver.cluster.started("stays", "goes")
    await driver.cluster.api.delete(f"{PODS}/goes?gracePeriodSeconds=1")
    assert await driver.daemon.ended(PATIENCE) == -signal.SIGKILL
    driver.configure()
    await driver.daemon.start()
    await reserved_once(driver, "stays")


def health(pod: Any) -> str:
    """The kubelet's health of the device of the pod's container; "": none."""
    (status,) = pod["status"].get("containerStatuses") or [{}]
    found = [one for of in status.get("allocatedResourcesStatus") or () for one in of.get("resources") or ()]
    return str(found[0].get("health", "")) if found else ""


def taints(slice_: Any) -> list[str]:
    return [one["key"] for device in devices(slice_) for one in device.get("taints") or ()]


async def test_devices_are_tainted_and_unhealthy_while_protectd_is_away(driver: Driver) -> None:
    """No new claim is allocated, and the running pod keeps running.

    The kubelet syncs no pods while their runtime is not ready: the pod's own status cannot show the health.
    """
    cluster, at = driver.cluster, f"spec.driver={DRIVER}"
    await create(driver, "holds")
    await cluster.until("holds", lambda pod: health(pod) == "Healthy")
    protectd = cluster.node.protectd.daemon
    await protectd.crash()
    try:
        await cluster.api.until(SLICES, at, lambda one: taints(one) == [f"{DRIVER}/unhealthy"])
        await create(driver, "waits")
        assert "cannot allocate all claims" in await unscheduled(cluster, "waits")
    finally:
        await protectd.start()
    await cluster.api.until(SLICES, at, lambda one: not taints(one))
    await cluster.started("holds", "waits")
    await cluster.until("holds", lambda pod: health(pod) == "Healthy")
    await reserved_once(driver, "holds", "waits")


async def test_next_instance_serves_before_the_end_of_the_last(driver: Driver) -> None:
    """As in a rolling update: instances are named by the pods' uids. The slice is the same all the time."""
    cluster = driver.cluster
    await create(driver, "first")
    await cluster.started("first")
    before = await driver.slice()
    async with contextlib.AsyncExitStack() as undo:
        second, third = (instance(cluster, name) for name in ("second", "third"))
        await replaced(undo, driver, second, driver.daemon.stop)
        await replaced(undo, second, third, second.daemon.crash)  # the sockets are left
        after = await driver.slice()
        assert after["metadata"]["uid"] == before["metadata"]["uid"], "it was never removed"
        assert [one["name"] for one in devices(after)] == [one["name"] for one in devices(before)]
        names = (f"{when}-{one.daemon.log.stem}" for when in ("both", "after") for one in (second, third))
        await reserved_once(driver, "first", *names)
        await driver.daemon.start()


async def replaced(
    undo: contextlib.AsyncExitStack, last: Driver, following: Driver, end: Callable[[], Awaitable[None]]
) -> None:
    """Run the next instance beside the last, then alone; a pod with a claim starts each time."""
    name = following.daemon.log.stem
    await following.daemon.start()
    undo.push_async_callback(ended, following)
    await create(last, f"both-{name}")
    await last.cluster.started(f"both-{name}")
    await end()
    await create(following, f"after-{name}")
    await following.cluster.started(f"after-{name}")


async def ended(driver: Driver) -> None:
    """Stop an instance, and remove the sockets of a killed instance."""
    await driver.daemon.stop()
    name = driver.daemon.log.stem.removeprefix("dra-")
    registry = driver.cluster.folder / "root" / "plugins_registry"
    for path in (driver.daemon.socket, registry / f"{DRIVER}-{name}-reg.sock"):
        path.unlink(missing_ok=True)


async def test_a_second_driver_of_the_same_name_ends_and_changes_nothing(driver: Driver) -> None:
    second = instance(driver.cluster)
    with pytest.raises(DaemonFailed):
        await second.daemon.start()
    assert await second.daemon.ended() > 0
    assert "another live daemon serves it" in second.daemon.tail()
    await create(driver, "served")
    await driver.cluster.started("served")
    await reserved_once(driver, "served")


def nonsense(draw: random.Random) -> bytes:
    """Bytes of no protocol, or of HTTP/2 up to a point."""
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = bytes.fromhex("000000040000000000")
    endless = b"\x00\x00\x09\x01\x04\x00\x00\x00\x01" + b"\x82" * 9  # an unfinished request
    huge = b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"
    rest = draw.randbytes(draw.randrange(1, 4096))
    return draw.choice(
        [
            rest,
            greeting,
            greeting + rest,
            greeting + settings + endless,
            greeting + settings + huge + rest,
            b"\x00" * 4096,
        ]
    )


async def test_garbage_on_its_sockets_disturbs_nobody(driver: Driver) -> None:
    """Connections with nonsense or without data, left open, beside a kubelet at work."""
    process = driver.daemon.process
    assert process is not None
    registry = driver.cluster.folder / "root" / "plugins_registry" / f"{DRIVER}-reg.sock"
    draw = random.Random(1)
    before = resident(process.pid)
    async with contextlib.AsyncExitStack() as open_:
        for number in range(300):
            path = driver.daemon.socket if number % 2 else registry
            _, writer = await asyncio.open_unix_connection(path)
            open_.callback(writer.close)
            writer.write(nonsense(draw) if number % 10 else b"")
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        await create(driver, "undisturbed")
        await driver.cluster.started("undisturbed")
        assert resident(process.pid) < before + (64 << 20)
    assert process.returncode is None
    await reserved_once(driver, "undisturbed")


def resident(pid: int) -> int:
    """Memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.asynccontextmanager
async def small_state(cluster: Cluster) -> AsyncIterator[Path]:
    """Have protectd's state in a file system of 16 MiB while the block runs, and as it was afterwards."""
    state, kept = cluster.node.protectd.folder / "state", cluster.node.protectd.folder / "kept"
    daemon = cluster.node.protectd.daemon
    await daemon.stop()
    shutil.copytree(state, kept, symlinks=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "tmpfs", str(state)], check=True)
    try:
        shutil.copytree(kept, state, symlinks=True, dirs_exist_ok=True)
        await daemon.start()
        yield state
    finally:
        await cluster.tidy()
        await daemon.stop()
        subprocess.run(["umount", str(state)], check=True)
        shutil.rmtree(kept)
        await daemon.start()


async def test_no_room_for_the_ledger_is_said_and_over_once_there_is(driver: Driver) -> None:
    async with small_state(driver.cluster) as state:
        filler = state / "filler"
        with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        await create(driver, "squeezed")
        await driver.cluster.event("squeezed", "No space left on device (free space in state_dir)")
        filler.unlink()
        await driver.cluster.started("squeezed")
        await reserved_once(driver, "squeezed")
