"""GetContainerEvents, and the streamed lists."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.container import stop
from cri.state import container_events as events_module
from cri.state.attachment import Attachment
from cri.state.container import NEXT as CONTAINER_NEXT
from cri.state.container import Container, ContainerExit, ContainerImage, ContainerPhase
from cri.state.container_events import Events, Feed
from cri.state.records import Records
from cri.state.sandbox import NEXT as SANDBOX_NEXT
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.faults import Exhausted, Fault
from daemonkit.rpc import server as rpc_server
from tests.support.cri.cri_node import CHAIN, Rig, container_config, pod_config, rig
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

CREATED, STARTED = cri.CONTAINER_CREATED_EVENT, cri.CONTAINER_STARTED_EVENT
STOPPED, DELETED = cri.CONTAINER_STOPPED_EVENT, cri.CONTAINER_DELETED_EVENT
SANDBOX = Sandbox(
    id="pod",
    phase=SandboxPhase.READY,
    created_ns=1,
    handler="xenpod",
    config=pod_config(),
    attachment=Attachment("pod", Path("/run/netns/pod"), "eth0", CHAIN, {}),
)
RUNNING = Container(
    id="main",
    sandbox_id="pod",
    phase=ContainerPhase.RUNNING,
    created_ns=1,
    config=container_config(),
    image=ContainerImage("sha256:1", "busybox"),
    log_path="",
    process="{}",
    stop_signal=15,
    started_ns=2,
)
EXIT = ContainerExit(3, 137, "Error")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


class Listener:
    """A subscriber that keeps its events."""

    def __init__(self, node: Rig) -> None:
        self._call = node.cri.GetContainerEvents(cri.GetEventsRequest())

    async def next(self, count: int) -> list[cri.ContainerEventResponse]:
        async with asyncio.timeout(60):
            return [await self._call.read() for _ in range(count)]

    async def kinds(self, count: int) -> list[tuple[int, str]]:
        return [(one.container_event_type, one.container_id) for one in await self.next(count)]

    async def nothing(self) -> bool:
        try:
            async with asyncio.timeout(0.2):
                await self._call.read()
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self._call.cancel()


class SlowStore:
    """Saves while ``open`` is set, and fails if told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.failure: Fault | None = None

    async def save(self, record: object) -> None:
        await self.open.wait()
        if self.failure:
            raise self.failure

    async def delete(self, record_id: str) -> None:
        await self.open.wait()


def states(event: cri.ContainerEventResponse) -> dict[str, tuple[int, int]]:
    """State and exit code of each container in an event."""
    return {one.id: (one.state, one.exit_code) for one in event.containers_statuses}


async def test_each_step_of_a_whole_life_has_an_event(node: Rig) -> None:
    listener = Listener(node)
    pod = await node.pod()
    container = await node.started(pod)
    await node.protect.exit(container, 3, "Error")
    found = await listener.next(5)
    assert [(one.container_event_type, one.container_id) for one in found] == [
        (CREATED, pod),
        (STARTED, pod),
        (CREATED, container),
        (STARTED, container),
        (STOPPED, container),
    ]
    assert all(one.pod_sandbox_status.id == pod and one.created_at > 0 for one in found)
    states = [[status.state for status in one.containers_statuses] for one in found]
    assert states == [[], [], [cri.CONTAINER_CREATED], [cri.CONTAINER_RUNNING], [cri.CONTAINER_EXITED]]
    (ended,) = found[-1].containers_statuses
    assert (ended.exit_code, ended.reason) == (3, "Error")
    await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    found = await listener.next(3)
    assert [(one.container_event_type, one.container_id) for one in found] == [
        (STOPPED, pod),
        (DELETED, container),
        (DELETED, pod),
    ]
    assert (
        found[0].pod_sandbox_status.state == cri.SANDBOX_NOTREADY and found[-1].pod_sandbox_status.id == pod
    )
    assert found[1].containers_statuses == [] and await listener.nothing()


async def test_other_containers_of_the_pod_are_shown(node: Rig) -> None:
    pod = await node.pod()
    first = await node.started(pod, "first")
    await node.started(await node.pod("other"), "stranger")
    listener = Listener(node)
    await listener.next(8)
    second = await node.container(pod, "second")
    (event,) = await listener.next(1)
    assert [status.id for status in event.containers_statuses] == [second, first]


async def test_the_end_of_a_zone_stops_its_pod_once(node: Rig) -> None:
    pod = await node.pod()
    container = await node.started(pod)
    listener = Listener(node)
    await listener.next(4)
    await node.protect.crash_zone(pod, "out of memory")
    assert await listener.kinds(2) == [(STOPPED, container), (STOPPED, pod)]
    await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    assert await listener.kinds(2) == [(DELETED, container), (DELETED, pod)]


async def test_removing_by_force_stops_first(node: Rig) -> None:
    pod = await node.pod()
    running, created = await node.started(pod, "a"), await node.container(pod, "b")
    listener = Listener(node)
    await listener.next(5)
    for container in (running, created):
        await node.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    found = await listener.next(3)
    assert [(one.container_event_type, one.container_id) for one in found] == [
        (STOPPED, running),
        (DELETED, running),
        (DELETED, created),
    ]
    assert states(found[0]) == {running: (cri.CONTAINER_EXITED, 137), created: (cri.CONTAINER_CREATED, 0)}
    assert states(found[1]) == {created: (cri.CONTAINER_CREATED, 0)}
    assert all(one.pod_sandbox_status.state == cri.SANDBOX_READY for one in found)


async def test_event_beside_the_removal_of_an_unstarted_container_says_created(node: Rig) -> None:
    pod = await node.pod()
    unstarted = await node.container(pod, "unstarted")
    node.protect.stalls["DeleteWorkload"] = asyncio.Event()
    removal = asyncio.ensure_future(
        node.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=unstarted))
    )
    await until(lambda: "DeleteWorkload" in node.protect.calls)
    listener = Listener(node)
    await listener.next(3)
    other = await node.container(pod, "other")
    (event,) = await listener.next(1)
    assert states(event) == {other: (cri.CONTAINER_CREATED, 0), unstarted: (cri.CONTAINER_CREATED, 0)}
    node.protect.stalls.pop("DeleteWorkload").set()
    await removal


@pytest.mark.parametrize("verb", ["stop", "remove"])
async def test_end_of_a_pod_with_running_containers_tells_each_exit(node: Rig, verb: str) -> None:
    pod = await node.pod()
    ended = await node.started(pod, "ended")
    await node.protect.exit(ended, 3, "Error")
    running = {await node.started(pod, name) for name in ("a", "b", "c")}
    unstarted = await node.container(pod, "unstarted")
    listener = Listener(node)
    await listener.next(12)
    if verb == "stop":
        await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    else:
        await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    found = await listener.next(5)
    expected = {one: (cri.CONTAINER_RUNNING, 0) for one in running}
    expected |= {ended: (cri.CONTAINER_EXITED, 3), unstarted: (cri.CONTAINER_CREATED, 0)}
    for event in found[:4]:
        assert event.container_event_type == STOPPED
        expected[event.container_id] = (cri.CONTAINER_EXITED, 137)
        assert states(event) == expected
    assert [one.container_id for one in found[3:]] == [unstarted, pod]
    assert states(found[4]) == expected
    if verb == "remove":
        assert [one.container_event_type for one in await listener.next(6)] == [DELETED] * 6


async def test_container_removed_while_its_pod_stops_and_its_exit_is_unknown_was_killed(node: Rig) -> None:
    pod = await node.pod()
    container = await node.started(pod)
    listener = Listener(node)
    await listener.next(4)
    node.protect.stalls["SignalWorkload"] = asyncio.Event()
    stopping = asyncio.ensure_future(node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod)))
    await until(lambda: node.protect.calls.count("SignalWorkload") == 1)
    removal = asyncio.ensure_future(
        node.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    )
    await until(lambda: node.protect.calls.count("SignalWorkload") == 2)
    del node.protect.workloads[container]
    node.protect.stalls.pop("SignalWorkload").set()
    await asyncio.gather(stopping, removal)
    found = [one for one in await listener.next(3) if one.container_id == container]
    assert [one.container_event_type for one in found] == [STOPPED, DELETED]
    assert states(found[0]) == {container: (cri.CONTAINER_EXITED, 137)}


async def test_failed_removal_of_a_surviving_container_changes_nothing(
    node: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "_KILL_SECONDS", 0.1)
    container = await node.started(await node.pod())
    node.protect.ignored_signals = {9}
    with pytest.raises(grpc.aio.AioRpcError, match="does not say that it ended"):
        await node.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    assert (await node.status(container)).state == cri.CONTAINER_RUNNING
    node.protect.ignored_signals = set()
    await node.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    assert await node.containers() == []


async def test_event_shows_the_records_at_the_change_even_if_the_store_is_slow() -> None:
    store = SlowStore()
    sandboxes: Records[Sandbox] = Records("pod sandbox", SANDBOX_NEXT, store.save, store.delete)
    containers: Records[Container] = Records("container", CONTAINER_NEXT, store.save, store.delete)
    clock = iter(range(100))
    events = Events(sandboxes, containers, lambda: next(clock))
    first, second = (replace(RUNNING, id=name) for name in ("first", "second"))
    sandboxes.adopt(SANDBOX)
    containers.adopt(first)
    containers.adopt(second)
    store.open.clear()
    exits = {one.id: replace(one, phase=ContainerPhase.EXITED, exit=EXIT) for one in (first, second)}
    changes = [asyncio.ensure_future(containers.note(one)) for one in exits.values()]
    await asyncio.sleep(0)
    changes.append(asyncio.ensure_future(sandboxes.note(replace(SANDBOX, phase=SandboxPhase.STOPPING))))
    for one in exits.values():
        changes.append(asyncio.ensure_future(containers.note(replace(one, phase=ContainerPhase.REMOVING))))
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(*changes)
    subscriber = events.subscribe()
    found = [await anext(subscriber) for _ in range(2)]
    await subscriber.aclose()
    assert [(one.id, one.kind, one.when_ns) for one in found] == [
        ("first", STOPPED, 0),
        ("second", STOPPED, 1),
    ]
    assert found[0].containers == (exits["first"], second)
    assert found[1].containers == (exits["second"], exits["first"])
    assert [one.sandbox for one in found] == [SANDBOX, SANDBOX]


async def test_unstored_change_causes_no_event() -> None:
    store = SlowStore()
    sandboxes: Records[Sandbox] = Records("pod sandbox", SANDBOX_NEXT, store.save, store.delete)
    containers: Records[Container] = Records("container", CONTAINER_NEXT, store.save, store.delete)
    events = Events(sandboxes, containers, lambda: 1)
    sandboxes.adopt(SANDBOX)
    containers.adopt(RUNNING)
    store.failure = Exhausted("write", "record", "the disk is full")
    with pytest.raises(Exhausted):
        await containers.put(replace(RUNNING, phase=ContainerPhase.EXITED, exit=EXIT))
    store.failure = None
    await containers.drop(RUNNING.id)
    subscriber = events.subscribe()
    assert (await anext(subscriber)).kind == DELETED
    await subscriber.aclose()


async def test_failed_create_causes_no_event(node: Rig) -> None:
    pod = await node.pod()
    listener = Listener(node)
    await listener.next(2)
    node.protect.failures["CreateWorkload"] = Exhausted("create", "workload", "no room")
    with pytest.raises(grpc.aio.AioRpcError):
        await node.container(pod)
    assert await listener.nothing()


async def test_ends_during_the_daemons_absence_cause_events(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        pod = await node.pod()
        container, gone = await node.started(pod, "main"), await node.started(pod, "gone")
    protect, network, images = node.protect, node.network, node.images
    await protect.exit(container, 137, "OOMKilled")
    del protect.workloads[gone]
    async with rig(tmp_path, protect, network, images) as node:
        found = await Listener(node).next(2)
        assert {(one.container_event_type, one.container_id) for one in found} == {
            (STOPPED, container),
            (STOPPED, gone),
        }
        ends = {status.id: status for status in found[-1].containers_statuses}
        assert (ends[container].exit_code, ends[container].reason) == (137, "OOMKilled")


async def test_events_without_a_listener_are_kept_for_the_next_listener(node: Rig) -> None:
    pod = await node.pod()
    first = Listener(node)
    await first.next(2)
    first.close()
    await until(lambda: not node.daemon.events._feed._subscribers)
    container = await node.container(pod)
    assert await Listener(node).kinds(1) == [(CREATED, container)]
    assert await Listener(node).nothing()  # events are told once


async def test_a_slow_subscriber_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed: Feed[int] = Feed(4)
    slow, quick = feed.subscribe(), feed.subscribe()
    for one in (slow, quick):
        waiting = asyncio.ensure_future(anext(one))
        await asyncio.sleep(0)
        feed.put(0)
        assert await waiting == 0
    assert await anext(slow) == 0
    for number in range(1, 6):
        feed.put(number)
        assert await anext(quick) == number
    with pytest.raises(Exhausted, match="more than 4 events behind"):
        await anext(slow)
    assert len(feed._subscribers) == 1
    await quick.aclose()


async def test_unread_events_go_to_the_next_subscriber() -> None:
    feed: Feed[int] = Feed(4)
    for number in range(6):
        feed.put(number)  # more than is kept
    first = feed.subscribe()
    assert await anext(first) == 2
    await first.aclose()
    second = feed.subscribe()
    assert [await anext(second) for _ in range(3)] == [3, 4, 5]
    await second.aclose()


async def test_subscribers_are_counted(node: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "SUBSCRIBER_LIMIT", 1)
    listener = Listener(node)
    await node.pod()
    await listener.next(2)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.GetContainerEvents(cri.GetEventsRequest()).read()
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def streamed(call: Any, field: str) -> list[Any]:
    """All items of a finite stream."""
    async with asyncio.timeout(60):
        return [item async for message in call for item in getattr(message, field)]


@pytest.mark.parametrize("size", [1, 3, 64])
async def test_streaming_lists_return_all_items(
    node: Rig, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(rpc_server, "BATCH_ITEMS", size)
    assert await streamed(node.cri.StreamPodSandboxes(cri.StreamPodSandboxesRequest()), "pod_sandboxes") == []
    pods = [await node.pod(f"pod-{number}", labels={"odd": str(number % 2)}) for number in range(7)]
    containers = [await node.started(pod) for pod in pods]
    found = await streamed(node.cri.StreamPodSandboxes(cri.StreamPodSandboxesRequest()), "pod_sandboxes")
    listed = (await node.cri.ListPodSandbox(cri.ListPodSandboxRequest())).items
    assert [pod.id for pod in found] == pods and found == list(listed)
    found = await streamed(node.cri.StreamContainers(cri.StreamContainersRequest()), "containers")
    assert [container.id for container in found] == containers
    wanted = cri.PodSandboxFilter(label_selector={"odd": "1"})
    odd = await streamed(
        node.cri.StreamPodSandboxes(cri.StreamPodSandboxesRequest(filter=wanted)), "pod_sandboxes"
    )
    assert [pod.id for pod in odd] == pods[1::2]
    one = cri.StreamContainersRequest(filter=cri.ContainerFilter(pod_sandbox_id=pods[2]))
    assert [c.id for c in await streamed(node.cri.StreamContainers(one), "containers")] == [containers[2]]


async def test_a_gone_reader_harms_no_other(node: Rig) -> None:
    listener = Listener(node)
    listener.close()
    with contextlib.suppress(asyncio.CancelledError):
        await listener.next(1)
    assert await node.pod()
