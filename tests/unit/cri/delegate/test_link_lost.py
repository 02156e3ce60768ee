"""A delegate that is away, hangs, dies or comes late: zones work, and no pod of the delegate seems gone."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from daemonkit.config import Seconds
from tests.support.cri.cri_node import Rig
from tests.support.cri.mixed_rig import Mixed, becomes_ready, condition, in_front_of
from tests.support.cri.other_runtime import OtherRuntime, other_runtime
from xenpod_proto.cri.v1 import runtime_pb2 as cri


async def zones_work(ours: Rig) -> str:
    """Run the whole life of a pod of ours; returns its id."""
    pod = await ours.pod("still", handler="xenpod")
    await ours.started(pod)
    assert (await ours.pod_status(pod)).state == cri.SANDBOX_READY
    await ours.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    await ours.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    return pod


async def refused(call: Any, code: grpc.StatusCode, *words: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code
    for word in words:
        assert word in str(caught.value.details())


async def test_its_pods_are_listed_from_the_cached_list(mixed: Mixed) -> None:
    ours, theirs = await mixed.ours.pod("web", handler="xenpod"), await mixed.ours.pod("agent")
    container = await mixed.ours.started(theirs)
    assert await mixed.ours.containers() == [container]
    await mixed.other.die()
    for _ in range(2):
        assert await mixed.ours.pods() == [ours, theirs]
        assert await mixed.ours.containers() == [container]
    name = str(mixed.other.path)
    await refused(mixed.ours.pod("late"), grpc.StatusCode.UNAVAILABLE, name)
    await refused(mixed.ours.pod_status(theirs), grpc.StatusCode.UNAVAILABLE, name)
    await becomes_ready(mixed.ours, False)
    assert name in (await condition(mixed.ours)).message
    assert (await condition(mixed.ours, "RuntimeReady")).status
    await zones_work(mixed.ours)


async def test_removed_pods_of_ours_stay_ours(mixed: Mixed) -> None:
    """The kubelet asks once more about a removed object; the delegate must not answer."""
    pod = await mixed.ours.pod("web", handler="xenpod")
    container = await mixed.ours.started(pod)
    service = mixed.ours.cri
    await service.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    await service.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    status = cri.ContainerStatusRequest(container_id=container)
    lie = cri.ContainerStatus(id=container, state=cri.CONTAINER_RUNNING)
    mixed.other.answers["ContainerStatus"] = cri.ContainerStatusResponse(status=lie)
    for _ in range(2):
        await refused(mixed.ours.pod_status(pod), grpc.StatusCode.NOT_FOUND)
        await refused(service.ContainerStatus(status), grpc.StatusCode.NOT_FOUND)
        await service.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
        await service.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
        await service.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
        await mixed.other.die()


async def test_filters_hold_for_its_last_word(mixed: Mixed) -> None:
    mixed.other.has_pod("a" * 64, labels={"app": "one"})
    mixed.other.has_pod("b" * 64, labels={"app": "two"}, state=cri.SANDBOX_NOTREADY)
    mixed.other.has_container("c" * 64, "a" * 64)
    mixed.other.has_container("e" * 64, "b" * 64, state=cri.CONTAINER_EXITED)
    assert len(await mixed.ours.pods()) == len(await mixed.ours.containers()) == 2
    await mixed.other.die()
    rig = mixed.ours
    assert await rig.pods(label_selector={"app": "two"}) == ["b" * 64]
    assert await rig.pods(state=cri.PodSandboxStateValue(state=cri.SANDBOX_READY)) == ["a" * 64]
    assert await rig.pods(id="aa") == ["a" * 64]
    running = cri.ContainerStateValue(state=cri.CONTAINER_RUNNING)
    assert await rig.containers(state=running) == ["c" * 64]
    assert await rig.containers(pod_sandbox_id="b" * 64) == ["e" * 64]


async def test_changes_after_the_last_list_are_in_the_cached_list(mixed: Mixed) -> None:
    old = await mixed.ours.pod("old")
    gone = await mixed.ours.container(old, "gone")
    assert len(await mixed.ours.containers()) == 1
    new = await mixed.ours.pod("new")
    container = await mixed.ours.container(new)
    await mixed.ours.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=old))
    await mixed.other.die()
    reply = await mixed.ours.cri.ListPodSandbox(cri.ListPodSandboxRequest())
    assert [(one.id, one.metadata.name, one.state) for one in reply.items] == [
        (new, "new", cri.SANDBOX_READY)
    ]
    found = await mixed.ours.cri.ListContainers(cri.ListContainersRequest())
    assert [(one.id, one.pod_sandbox_id) for one in found.containers] == [(container, new)]
    assert gone not in mixed.other.containers


async def test_a_returned_delegate_is_used_again(mixed: Mixed) -> None:
    pod = await mixed.ours.pod("agent")
    await mixed.other.die()
    await becomes_ready(mixed.ours, False)
    mixed.other.has_pod("f" * 64)
    await mixed.other.start()
    await becomes_ready(mixed.ours)
    assert await mixed.ours.pods() == [pod, "f" * 64]
    await mixed.ours.started(pod)


async def test_no_call_waits_for_a_hanging_delegate(short_path: Path, other: OtherRuntime) -> None:
    """One call misses its deadline; until the next answer other calls use the cached list."""
    async with in_front_of(short_path, other.path, timeout=Seconds(1.0)) as ours:
        theirs = await ours.pod("agent")
        mine = await ours.pod("web", handler="xenpod")
        assert await ours.pods() == [mine, theirs]
        other.hanging |= {"Version", "ListPodSandbox", "ListContainers", "Status", "PodSandboxStatus"}
        assert await ours.pods() == [mine, theirs]
        before = len(other.asked("ListPodSandbox"))
        for _ in range(100):
            assert await ours.pods() == [mine, theirs]
        assert len(other.asked("ListPodSandbox")) == before
        assert "no answer within 1 s" in (await condition(ours)).message
        await refused(ours.pod_status(theirs), grpc.StatusCode.DEADLINE_EXCEEDED, str(other.path))
        await zones_work(ours)
        other.hanging.clear()
        await becomes_ready(ours)


async def test_a_callers_short_deadline_does_not_mark_the_delegate_as_away(mixed: Mixed) -> None:
    mixed.other.has_pod("a" * 64)
    mixed.other.hanging.add("ListPodSandbox")
    mixed.other.calls.clear()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await mixed.ours.cri.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(60):
        while mixed.other.cancelled != ["ListPodSandbox"]:
            mixed.other.changed.clear()
            await mixed.other.changed.wait()
    mixed.other.hanging.clear()
    assert await mixed.ours.pods() == ["a" * 64]
    assert len(mixed.other.asked("ListPodSandbox")) >= 2 and not mixed.other.asked("Version")


async def test_after_a_while_lists_fail_with_its_name(short_path: Path, other: OtherRuntime) -> None:
    """Otherwise the kubelet would take the pods for unchanged, or for gone."""
    async with in_front_of(short_path, other.path, keep=Seconds(0.001)) as ours:
        mine = await ours.pod("web", handler="xenpod")
        await ours.pod("agent")
        assert len(await ours.pods()) == 2
        await other.die()
        for call in (ours.pods(), ours.containers()):
            await refused(call, grpc.StatusCode.UNAVAILABLE, str(other.path), "take [delegate] out")
        assert await ours.pods(id=mine) == [mine]
        await zones_work(ours)
        await other.start()
        await becomes_ready(ours)
        assert len(await ours.pods()) == 2


async def test_a_delegate_may_start_later(short_path: Path) -> None:
    path = short_path / "late.sock"
    async with in_front_of(short_path, path) as ours:
        assert str(path) in (await condition(ours)).message
        mine = await ours.pod("web", handler="xenpod")
        assert await ours.pods() == [mine]
        await refused(ours.pod("agent"), grpc.StatusCode.UNAVAILABLE, str(path), "is that runtime running?")
        async with other_runtime(path) as other:
            other.has_pod("f" * 64)
            await becomes_ready(ours)
            assert await ours.pods() == [mine, "f" * 64]


async def test_pods_of_a_delegate_lost_during_our_restart_are_unknown(short_path: Path) -> None:
    """The delegate may have pods, which must not seem gone."""
    path = short_path / "other.sock"
    async with other_runtime(path) as other, in_front_of(short_path, path) as ours:
        other.answers["RuntimeConfig"] = cri.RuntimeConfigResponse(
            linux=cri.LinuxRuntimeConfiguration(cgroup_driver=cri.CGROUPFS)
        )
        await ours.cri.RuntimeConfig(cri.RuntimeConfigRequest())
        await ours.pod("agent")
    async with in_front_of(short_path, path) as ours:
        await refused(ours.pods(), grpc.StatusCode.UNAVAILABLE, str(path), "what it runs is not known")
        await zones_work(ours)
        reply = await ours.cri.RuntimeConfig(cri.RuntimeConfigRequest())
        assert reply.linux.cgroup_driver == cri.CGROUPFS
        await other.start()
        await becomes_ready(ours)
        assert len(await ours.pods()) == 1
        await other.die()
    other_path = short_path / "another.sock"
    async with in_front_of(short_path, other_path) as ours:
        assert await ours.pods() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"endpoint": "unix://@", "runtime_config": 3}'])
async def test_an_unreadable_note_of_the_delegate_is_an_error(short_path: Path, text: str) -> None:
    """The delegate may have pods: be safe."""
    path = short_path / "other.sock"
    (short_path / "state").mkdir()
    (short_path / "state" / "delegate.json").write_text(text.replace("@", str(path)))
    async with in_front_of(short_path, path) as ours:
        await refused(ours.pods(), grpc.StatusCode.UNAVAILABLE, "what it runs is not known")
        async with other_runtime(path):
            await becomes_ready(ours)
            assert await ours.pods() == []


@pytest.mark.parametrize("method", ["ExecSync", "ListPodSandbox"])
async def test_a_call_fails_if_the_delegate_dies_during_the_call(mixed: Mixed, method: str) -> None:
    theirs = await mixed.ours.pod("agent")
    assert await mixed.ours.pods() == [theirs]
    mixed.other.hanging.add(method)
    mixed.other.changed.clear()
    mixed.other.calls.clear()
    request = cri.ExecSyncRequest(container_id="e" * 64) if method == "ExecSync" else None
    call = mixed.ours.cri.ExecSync(request) if request else asyncio.ensure_future(mixed.ours.pods())
    async with asyncio.timeout(60):
        while not mixed.other.asked(method):
            mixed.other.changed.clear()
            await mixed.other.changed.wait()
    await mixed.other.die()
    if request:
        await refused(call, grpc.StatusCode.UNAVAILABLE, str(mixed.other.path))
    else:
        assert await call == [theirs]
    await zones_work(mixed.ours)


async def test_an_ambiguous_prefix_of_an_id_is_refused_while_the_delegate_is_away(mixed: Mixed) -> None:
    mine = await mixed.ours.pod("web", handler="xenpod")
    mixed.other.has_pod(mine[:10] + "f" * 54)
    await mixed.ours.pods()
    await mixed.other.die()
    await becomes_ready(mixed.ours, False)
    await refused(mixed.ours.pod_status(mine[:10]), grpc.StatusCode.INVALID_ARGUMENT, "both runtimes")
    assert (await mixed.ours.pod_status(mine[:12])).id == mine


async def test_our_end_cancels_calls_to_the_delegate(short_path: Path, other: OtherRuntime) -> None:
    other.hanging.add("ExecSync")
    async with contextlib.AsyncExitStack() as stack:
        ours = await stack.enter_async_context(in_front_of(short_path, other.path))
        call = ours.cri.ExecSync(cri.ExecSyncRequest(container_id="e" * 64))
        async with asyncio.timeout(60):
            while not other.asked("ExecSync"):
                other.changed.clear()
                await other.changed.wait()
        call.cancel()
    assert not other.pods
