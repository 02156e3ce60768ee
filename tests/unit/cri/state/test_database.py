"""State: records, the store, restarts, news in any order."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cri.daemon import running_daemon
from cri.state.changes import StateChanges, advanced
from cri.state.container import NEXT as CONTAINER_NEXT
from cri.state.container import Container, ContainerExit, ContainerImage, ContainerPhase
from cri.state.database import Database
from cri.state.names import Locks
from cri.state.records import Records
from cri.state.sandbox import NEXT as SANDBOX_NEXT
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.faults import Broken, Exhausted
from daemonkit.host import disk_space
from tests.support.cri.cri_node import FakeImages, FakeNetwork, container_config, node_config, pod_config, rig
from tests.support.cri.fake_protect import FakeProtect, serving
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

PLACE = FakeNetwork().plan("s" * 64, pod_config())
SANDBOX = Sandbox("s" * 64, SandboxPhase.READY, 5, "xenpod", pod_config(labels={"a": "b"}), PLACE)
CONTAINER = Container(
    id="c" * 64,
    sandbox_id=SANDBOX.id,
    phase=ContainerPhase.CREATED,
    created_ns=6,
    config=container_config(),
    image=ContainerImage("sha256:1", "x@sha256:2"),
    log_path="/logs/0.log",
    process='{"user": {"uid": 0, "gid": 0}}',
    stop_signal=15,
)


async def test_the_store_returns_stored_records(tmp_path: Path) -> None:
    store = await Database.open(tmp_path / "cri.db")
    ended = replace(
        CONTAINER, phase=ContainerPhase.EXITED, exit=ContainerExit(9, 137, "OOMKilled", "message")
    )
    dead = replace(SANDBOX, phase=SandboxPhase.DEAD, death_reason="crash")
    await store.save_sandbox(SANDBOX)
    await store.save_container(CONTAINER)
    await store.save_container(ended)
    await store.save_sandbox(dead)  # an upsert: the referring container stays
    assert await store.load() == ([dead], [ended])
    await store.close()
    assert (tmp_path / "cri.db").stat().st_mode & 0o777 == 0o600
    store = await Database.open(tmp_path / "cri.db")
    assert await store.load() == ([dead], [ended])
    await store.delete_container(ended.id)
    await store.delete_sandbox(dead.id)
    await store.delete_sandbox("unknown")
    assert await store.load() == ([], [])
    await store.close()


async def test_a_store_of_another_version_or_of_no_kind_is_left_alone(tmp_path: Path) -> None:
    for version in (3, 99):
        with sqlite3.connect(tmp_path / f"{version}.db") as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        with pytest.raises(Broken, match=rf"version {version}, .*use the xenpod-cri that wrote it"):
            await Database.open(tmp_path / f"{version}.db")
    (tmp_path / "odd.db").write_bytes(b"this is not a database, and never was one" * 100)
    with pytest.raises(Broken):
        await Database.open(tmp_path / "odd.db")


async def test_a_full_disk_is_told_and_memory_goes_back(tmp_path: Path) -> None:
    store = await Database.open(tmp_path / "cri.db")
    registry = Records("pod sandbox", SANDBOX_NEXT, store.save_sandbox, store.delete_sandbox)
    await registry.add(SANDBOX)
    limit = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {limit}")
    large = replace(SANDBOX, config=pod_config(annotations={"x": "y" * 100_000}))
    with pytest.raises(Exhausted, match="No space left"):
        await registry.put(large)
    assert registry.get(SANDBOX.id) == SANDBOX
    await registry.note(replace(large, phase=SandboxPhase.DEAD))
    assert registry.get(SANDBOX.id).phase is SandboxPhase.DEAD
    await store.close()


async def test_a_full_disk_takes_nothing_new_and_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Database.open(tmp_path / "cri.db")
    await store.save_sandbox(SANDBOX)
    monkeypatch.setattr(disk_space, "LEAST_BYTES", 2**63)
    with pytest.raises(Exhausted, match="No space left"):
        await store.save_sandbox(replace(SANDBOX, id="n" * 64, phase=SandboxPhase.CREATING))
    with pytest.raises(Exhausted, match="No space left"):
        await store.save_container(replace(CONTAINER, id="n" * 64, phase=ContainerPhase.CREATING))
    await store.save_sandbox(replace(SANDBOX, phase=SandboxPhase.STOPPING))
    await store.save_container(CONTAINER)
    sandboxes, containers = await store.load()
    assert [(one.id, one.phase) for one in sandboxes] == [(SANDBOX.id, SandboxPhase.STOPPING)]
    assert containers == [CONTAINER]
    await store.close()


async def _nothing(_: object) -> None:
    return None


@pytest.mark.parametrize(("record", "following"), [(SANDBOX, SANDBOX_NEXT), (CONTAINER, CONTAINER_NEXT)])
async def test_records_only_go_where_the_table_says(record: Any, following: Mapping[Any, Any]) -> None:
    for before in following:
        for after in following:
            registry: Records[Any] = Records("record", following, _nothing, _nothing)
            registry.adopt(replace(record, phase=before))
            if after is before or after in following[before]:
                await registry.put(replace(record, phase=after))
            else:
                with pytest.raises(Broken, match="does not become"):
                    await registry.put(replace(record, phase=after))


def _news(state: pb.WorkloadState.ValueType, **fields: Any) -> pb.Workload:
    return pb.Workload(id=CONTAINER.id, zone_id=SANDBOX.id, state=state, **fields)


def test_news_takes_a_container_forward_only() -> None:
    running = advanced(CONTAINER, _news(pb.WORKLOAD_STATE_RUNNING, started_at_ns=7))
    assert (running.phase, running.started_ns) == (ContainerPhase.RUNNING, 7)
    assert advanced(running, _news(pb.WORKLOAD_STATE_CREATED)) is running
    ended = advanced(running, _news(pb.WORKLOAD_STATE_EXITED, finished_at_ns=8, reason="Completed"))
    assert ended.exit == ContainerExit(8, 0, "Completed", "")
    assert advanced(ended, _news(pb.WORKLOAD_STATE_RUNNING, started_at_ns=9)) is ended
    assert advanced(ended, _news(pb.WORKLOAD_STATE_EXITED, exit_code=1)) is ended
    straight = advanced(CONTAINER, _news(pb.WORKLOAD_STATE_EXITED, started_at_ns=7, finished_at_ns=8))
    assert (straight.phase, straight.started_ns) == (ContainerPhase.EXITED, 7)


async def test_news_of_strangers_is_nothing() -> None:
    sandboxes: Records[Sandbox] = Records("pod sandbox", SANDBOX_NEXT, _nothing, _nothing)
    containers: Records[Container] = Records("container", CONTAINER_NEXT, _nothing, _nothing)
    changes = StateChanges(sandboxes, containers, lambda: 1)
    await changes.zone(pb.Zone(id="stranger", state=pb.ZONE_STATE_DEAD))
    await changes.zone_gone("stranger")
    await changes.workload(_news(pb.WORKLOAD_STATE_RUNNING))
    await changes.workload_gone("stranger")
    assert sandboxes.all() == [] and containers.all() == []


async def test_a_restart_knows_everything_again(tmp_path: Path) -> None:
    protect, network, images = FakeProtect(), FakeNetwork(), FakeImages()
    async with rig(tmp_path, protect, network, images) as node:
        pod = await node.pod("kept", labels={"a": "b"})
        running = await node.started(pod, "running")
        ending = await node.started(pod, "ending")
    await protect.exit(ending, 3, "Error")  # without a listener
    images.held.clear()
    async with rig(tmp_path, protect, network, images) as node:
        assert await node.pods() == [pod] and (await node.pod_status(pod)).network.ip == "10.0.0.1"
        assert (await node.status(running)).state == cri.CONTAINER_RUNNING
        status = await node.status(ending)
        assert (status.state, status.exit_code) == (cri.CONTAINER_EXITED, 3)
        assert set(images.held) == {running, ending}
        with pytest.raises(Exception, match="attempt 0, .* is ready"):
            await node.pod("kept")
        await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    assert not protect.zones and not network.attached and not images.held


async def test_after_a_reboot_pods_are_not_ready(tmp_path: Path) -> None:
    network = FakeNetwork()
    async with rig(tmp_path, network=network) as node:
        pod = await node.pod()
        running = await node.started(pod, "running")
        ended = await node.started(pod, "ended")
        await node.protect.exit(ended, 4, "Error")
        await until(lambda: node.daemon.records.containers.get(ended).exit is not None)
    async with rig(tmp_path, FakeProtect(), network) as node:  # a protectd without zones
        assert (await node.pod_status(pod)).state == cri.SANDBOX_NOTREADY
        assert (await node.status(ended)).exit_code == 4
        status = await node.status(running)
        assert status.state == cri.CONTAINER_EXITED and status.exit_code == 255
        await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    assert not network.attached


async def test_a_container_ended_before_its_zone_keeps_its_exit_code(tmp_path: Path) -> None:
    """The order of a host's shutdown: xenpod-cri ends first, then the container, then its zone."""
    protect = FakeProtect()
    async with rig(tmp_path, protect) as node:
        pod = await node.pod()
        container = await node.started(pod)
        killed = await node.started(pod, "killed")
    await protect.exit(container, 3, "Error")
    await protect.crash_zone(pod, "the host was shut down")
    async with rig(tmp_path, protect, node.network, node.images) as node:
        assert (await node.pod_status(pod)).state == cri.SANDBOX_NOTREADY
        assert (await node.status(container)).exit_code == 3
        assert (await node.status(killed)).state == cri.CONTAINER_EXITED


async def test_news_is_heard_again_after_protectd_was_away(tmp_path: Path) -> None:
    protect = FakeProtect()
    async with rig(tmp_path, protect, serve=True) as node:
        pod = await node.pod()
        container = await node.started(pod)
        protect.stalls["Watch"] = asyncio.Event()
        protect.end_watches()
        await until(lambda: not node.daemon.follower.synced.is_set())
        await protect.exit(container, 6, "Error")
        protect.stalls["Watch"].set()
        await until(node.daemon.follower.synced.is_set)
        assert (await node.status(container)).exit_code == 6


async def test_locks_are_forgotten() -> None:
    locks = Locks()
    order: list[int] = []

    async def hold(number: int) -> None:
        async with locks.hold("key"):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(hold(number) for number in range(3)))
    assert order == [0, 0, 1, 1, 2, 2] and not locks._locks


async def test_a_cancelled_change_is_made_in_memory_and_in_the_store() -> None:
    saving, saved = asyncio.Event(), asyncio.Event()
    stored: list[SandboxPhase] = []

    async def save(sandbox: Sandbox) -> None:
        saving.set()
        await saved.wait()
        stored.append(sandbox.phase)

    seen: list[SandboxPhase] = []
    records = Records("pod sandbox", SANDBOX_NEXT, save, _nothing)
    records.observe(lambda before, after: seen.append(after.phase) if after else None)
    records.adopt(SANDBOX)
    task = asyncio.create_task(records.put(replace(SANDBOX, phase=SandboxPhase.STOPPING)))
    await saving.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    saved.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert records.get(SANDBOX.id).phase is SandboxPhase.STOPPING
    assert stored == seen == [SandboxPhase.STOPPING]


async def test_a_deaf_daemon_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(FakeProtect(), node_config(tmp_path).protect_socket):
        with pytest.raises(ExceptionGroup) as raised:
            async with running_daemon(node_config(tmp_path), FakeImages(), FakeNetwork()) as node:
                monkeypatch.setattr(StateChanges, "zone", None)
                await node.zones.create_zone(pb.CreateZoneRequest(id="any"))
                await asyncio.sleep(60)
        assert raised.group_contains(TypeError)
