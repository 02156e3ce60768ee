"""Streaming lists and the stream of events, of both runtimes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.delegate.untrusted import MOST_ITEMS
from daemonkit.config import Seconds
from daemonkit.rpc.server import BATCH_ITEMS
from tests.support.cri.cri_node import Rig
from tests.support.cri.mixed_rig import Mixed, becomes_ready, in_front_of
from tests.support.cri.other_runtime import OtherRuntime, Status
from xenpod_proto.cri.v1 import runtime_pb2 as cri


async def streamed(ours: Rig, **fields: Any) -> list[str]:
    request = cri.StreamPodSandboxesRequest(filter=cri.PodSandboxFilter(**fields))
    found = []
    async for batch in ours.cri.StreamPodSandboxes(request):
        assert 0 < len(batch.pod_sandboxes) <= BATCH_ITEMS
        found += [one.id for one in batch.pod_sandboxes]
    return found


def pods_of(other: OtherRuntime, *after: Any) -> Any:
    """A stream of the delegate's pods, one in each message, and then ``after``."""

    async def stream(request: bytes) -> AsyncIterator[Any]:
        for pod in other.pods.values():
            yield cri.StreamPodSandboxesResponse(pod_sandboxes=[pod])
        for one in after:
            if isinstance(one, Status):
                raise one
            if one is None:
                await asyncio.Event().wait()
            yield one

    return stream


async def test_a_delegate_without_streams_is_asked_for_its_list(mixed: Mixed) -> None:
    mine = await mixed.ours.pod("web", handler="xenpod")
    theirs = [mixed.other.has_pod(f"{number:064x}").id for number in range(BATCH_ITEMS + 1)]
    for _ in range(3):
        assert await streamed(mixed.ours) == [mine, *theirs]
    assert len(mixed.other.asked("StreamPodSandboxes")) == 1
    assert await streamed(mixed.ours, id=mine) == [mine]


async def test_a_delegate_with_streams_is_listed_by_streams(mixed: Mixed) -> None:
    mine = await mixed.ours.pod("web", handler="xenpod")
    first, second = mixed.other.has_pod("a" * 64), mixed.other.has_pod("b" * 64)
    lies = cri.StreamPodSandboxesResponse(pod_sandboxes=[first, cri.PodSandbox(id=mine), cri.PodSandbox()])
    mixed.other.streams["StreamPodSandboxes"] = pods_of(mixed.other, lies)
    assert await streamed(mixed.ours) == [mine, first.id, second.id]
    assert await streamed(mixed.ours, id=mine) == await streamed(mixed.ours, id=mine[:8]) == [mine]
    before = len(mixed.other.asked("ListPodSandbox"))
    await mixed.other.die()
    await becomes_ready(mixed.ours, False)
    assert await mixed.ours.pods() == [mine, first.id, second.id]
    assert await streamed(mixed.ours) == [mine, first.id, second.id]
    assert len(mixed.other.asked("ListPodSandbox")) == before


@pytest.mark.parametrize("end", [Status(grpc.StatusCode.INTERNAL, "a bug"), b"\x0a\xff", None])
async def test_a_broken_or_silent_stream_is_completed_from_the_cached_list(
    short_path: Path, other: OtherRuntime, end: Any
) -> None:
    """The missing items are shown from the cached list, each once."""
    async with in_front_of(short_path, other.path, timeout=Seconds(1.0)) as ours:
        mine = await ours.pod("web", handler="xenpod")
        first, second = other.has_pod("a" * 64), other.has_pod("b" * 64)
        assert len(await ours.pods()) == 3
        del other.pods[second.id]
        other.streams["StreamPodSandboxes"] = pods_of(other, end)
        assert await streamed(ours) == [mine, first.id, second.id]


async def test_a_stream_without_end(mixed: Mixed) -> None:
    async def endless(request: bytes) -> AsyncIterator[Any]:
        number = 0
        while True:
            number += 1000
            items = [cri.PodSandbox(id=f"{number + one:064x}") for one in range(1000)]
            yield cri.StreamPodSandboxesResponse(pod_sandboxes=items)

    mine = await mixed.ours.pod("web", handler="xenpod")
    mixed.other.streams["StreamPodSandboxes"] = endless
    found = await streamed(mixed.ours)
    assert found[0] == mine and 1 < len(found) <= MOST_ITEMS + 1


@pytest.mark.parametrize(
    ("stream", "request_", "field"),
    [
        ("StreamContainers", cri.StreamContainersRequest(), "containers"),
        ("StreamContainerStats", cri.StreamContainerStatsRequest(), "container_stats"),
        ("StreamPodSandboxStats", cri.StreamPodSandboxStatsRequest(), "pod_sandbox_stats"),
        ("StreamPodSandboxMetrics", cri.StreamPodSandboxMetricsRequest(), "pod_sandbox_metrics"),
    ],
)
async def test_other_streams_of_both_are_joined(mixed: Mixed, stream: str, request_: Any, field: str) -> None:
    mine, theirs = await mixed.ours.pod("web", handler="xenpod"), await mixed.ours.pod("agent")
    await mixed.ours.started(mine)
    await mixed.ours.started(theirs)
    mixed.other.answers |= {
        "ListContainerStats": b"\x0a\x05\x0a\x03\x0a\x01c",
        "ListPodSandboxStats": b"\x0a\x05\x0a\x03\x0a\x01p",
        "ListPodSandboxMetrics": b"\x0a\x03\x0a\x01p",
    }
    batches = [batch async for batch in getattr(mixed.ours.cri, stream)(request_)]
    assert [len(getattr(batch, field)) for batch in batches] == [1, 1]


# events


def event(subject: str, kind: cri.ContainerEventType.ValueType = cri.CONTAINER_STARTED_EVENT) -> Any:
    return cri.ContainerEventResponse(container_id=subject, container_event_type=kind)


class Told:
    """The delegate's events, as the test sends them."""

    def __init__(self, other: OtherRuntime) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        other.streams["GetContainerEvents"] = self.stream

    async def stream(self, request: bytes) -> AsyncIterator[Any]:
        while True:
            one = await self.said.get()
            if isinstance(one, Status):
                raise one
            yield one


async def subscribed(mixed: Mixed, told: Told) -> Any:
    """A subscription to events, after the first event of the delegate."""
    events = mixed.ours.cri.GetContainerEvents(cri.GetEventsRequest())
    told.said.put_nowait(event("first"))
    assert (await events.read()).container_id == "first"
    return events


async def test_events_of_both_as_they_come(mixed: Mixed) -> None:
    told = Told(mixed.other)
    events = mixed.ours.cri.GetContainerEvents(cri.GetEventsRequest())
    for number in range(3):
        told.said.put_nowait(event(f"theirs{number}"))
        assert (await events.read()).container_id == f"theirs{number}"
    mine = await mixed.ours.pod("web", handler="xenpod")
    assert [(await events.read()).container_id for _ in range(2)] == [mine, mine]
    told.said.put_nowait(event("theirs"))
    assert (await events.read()).container_id == "theirs"


async def test_false_events_are_left_out(mixed: Mixed) -> None:
    told = Told(mixed.other)
    mine = await mixed.ours.pod("web", handler="xenpod")
    events = mixed.ours.cri.GetContainerEvents(cri.GetEventsRequest())
    assert [(await events.read()).container_id for _ in range(2)] == [mine, mine]
    gone = cri.CONTAINER_DELETED_EVENT
    about_ours = cri.ContainerEventResponse(pod_sandbox_status=cri.PodSandboxStatus(id=mine))
    for one in (event(mine, gone), about_ours, b"\x0a\xff", event("good", gone)):
        told.said.put_nowait(one)
    assert (await events.read()).container_id == "good"


async def test_events_are_taken_up_again(mixed: Mixed) -> None:
    told = Told(mixed.other)
    events = await subscribed(mixed, told)
    told.said.put_nowait(Status(grpc.StatusCode.UNAVAILABLE, "restarting"))
    await mixed.other.die()
    mine = await mixed.ours.pod("web", handler="xenpod")
    assert [(await events.read()).container_id for _ in range(2)] == [mine, mine]
    await mixed.other.start()
    told.said.put_nowait(event("second"))
    assert (await events.read()).container_id == "second"


async def test_changes_during_an_absence_cause_events(mixed: Mixed) -> None:
    """The subscriber's stream continues, and no list would follow."""
    other, told = mixed.other, Told(mixed.other)
    pod, gone = other.has_pod("a" * 64), other.has_pod("b" * 64)
    ended, same = other.has_container("c" * 64, pod.id), other.has_container("d" * 64, pod.id)
    await mixed.ours.pods()
    await mixed.ours.containers()
    events = await subscribed(mixed, told)
    await other.die()
    await becomes_ready(mixed.ours, False)
    del other.pods[gone.id]
    ended.state = cri.CONTAINER_EXITED
    new = other.has_pod("e" * 64)

    async def pod_status(request: bytes) -> Any:
        asked = cri.PodSandboxStatusRequest.FromString(request).pod_sandbox_id
        return cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id=asked))

    async def container_status(request: bytes) -> Any:
        asked = cri.ContainerStatusRequest.FromString(request).container_id
        if asked == same.id:
            raise Status(grpc.StatusCode.NOT_FOUND, "gone since")
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(id=asked, exit_code=3))

    other.answers |= {"PodSandboxStatus": pod_status, "ContainerStatus": container_status}
    await other.start()
    found = {(one := await events.read()).container_id: one for _ in range(3)}
    kinds = {subject: one.container_event_type for subject, one in found.items()}
    assert kinds == {
        ended.id: cri.CONTAINER_STOPPED_EVENT,
        gone.id: cri.CONTAINER_DELETED_EVENT,
        new.id: cri.CONTAINER_STARTED_EVENT,
    }
    assert found[ended.id].pod_sandbox_status.id == pod.id
    assert [one.exit_code for one in found[ended.id].containers_statuses] == [3]
    assert not found[gone.id].HasField("pod_sandbox_status")
    told.said.put_nowait(event("second"))
    assert (await events.read()).container_id == "second"


async def test_events_for_changes_during_an_absence_leave_out_false_statuses(mixed: Mixed) -> None:
    """A field of another type would end the stream of a subscriber in Go."""
    other, told = mixed.other, Told(mixed.other)
    await mixed.ours.pods()
    events = await subscribed(mixed, told)
    await other.die()
    await becomes_ready(mixed.ours, False)
    new = other.has_pod("e" * 64)
    lie = b"\x0a\x02\x08\x01"  # the status's id as a number
    other.answers["PodSandboxStatus"] = lie
    await other.start()
    found = await events.read()
    assert found.container_id == new.id
    assert not found.HasField("pod_sandbox_status")


async def test_no_events_without_the_delegates(mixed: Mixed) -> None:
    """The kubelet would rely on events for all pods; without them the kubelet lists, as with the delegate
    alone.
    """
    early = await mixed.ours.pod("early", handler="xenpod")
    events = mixed.ours.cri.GetContainerEvents(cri.GetEventsRequest())
    with pytest.raises(grpc.aio.AioRpcError, match="it has no events") as caught:
        await events.read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    Told(mixed.other)
    later = mixed.ours.cri.GetContainerEvents(cri.GetEventsRequest())
    assert (await later.read()).container_id == early, "none of ours is lost"


async def test_a_subscriber_who_goes_ends_the_delegates_stream(mixed: Mixed) -> None:
    mixed.other.hanging.add("GetContainerEvents")
    events = mixed.ours.cri.GetContainerEvents(cri.GetEventsRequest())
    mine = await mixed.ours.pod("web", handler="xenpod")
    assert (await events.read()).container_id == mine
    events.cancel()
    async with asyncio.timeout(60):
        while mixed.other.cancelled != ["GetContainerEvents"]:
            mixed.other.changed.clear()
            await mixed.other.changed.wait()
