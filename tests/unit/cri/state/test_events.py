"""GetContainerEvents, and the streamed lists."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.state import container_events as events_module
from cri.state.container_events import Feed
from daemonkit.faults import Exhausted
from daemonkit.rpc import server as rpc_server
from tests.support.cri.cri_node import Rig, rig
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

CREATED, STARTED = cri.CONTAINER_CREATED_EVENT, cri.CONTAINER_STARTED_EVENT
STOPPED, DELETED = cri.CONTAINER_STOPPED_EVENT, cri.CONTAINER_DELETED_EVENT


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
    assert await listener.kinds(3) == [(STOPPED, running), (DELETED, running), (DELETED, created)]


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
