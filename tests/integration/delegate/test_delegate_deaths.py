"""Either runtime goes away under pods of both kinds: all running pods go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.support.cri.cri_daemons import broken, needs_node
from tests.support.delegate.containerd import needs_containerd
from tests.support.delegate.mixed import HOST, KINDS, PATIENCE, ZONE, Mixed, mixed
from tests.support.waiting import until
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, needs_containerd]

COUNTS = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done"


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Mixed]:
    async with mixed(tmp_path) as made:
        yield made


async def counting(both: Mixed) -> dict[str, tuple[Pod, str]]:
    """Make a pod of each kind whose container counts, and has begun to count."""
    made = {}
    for kind in KINDS:
        pod = await both.pod(f"count-{kind}", kind)
        made[kind] = (pod, await both.started(pod, COUNTS))
        await counted(both.client, pod, 10)
    return made


async def counted(client: Client, pod: Pod, more: int) -> list[int]:
    """The numbers in a log, once ``more`` new numbers are there."""
    path = client.log(pod)
    wanted = len(numbers(path)) + more
    await until(lambda: len(numbers(path)) >= wanted, PATIENCE)
    return numbers(path)


def numbers(log: Path) -> list[int]:
    """The numbers in the complete lines."""
    text = log.read_text() if log.exists() else ""
    return [int(line.split()[3]) for line in text[: text.rfind("\n") + 1].splitlines()]


async def go_on(both: Mixed, made: dict[str, tuple[Pod, str]], kinds: Sequence[str] = KINDS) -> None:
    """Check that each container has the same first process, has lost no line, and answers."""
    for kind in kinds:
        pod, container = made[kind]
        log = await counted(both.client, pod, 10)
        assert log == list(range(1, len(log) + 1)), "no line is lost or repeated"
        status = await both.status(container)
        assert (status.state, status.metadata.attempt) == (cri.CONTAINER_RUNNING, 0)
        assert await both.output(container, "echo hello") == "hello"
    assert sorted(await both.pods()) == sorted(pod.id for pod, _ in made.values())


@pytest.mark.parametrize("who", ["containerd", "xenpod-cri", "protectd", "all"])
async def test_a_daemon_is_killed_and_started_again(both: Mixed, who: str) -> None:
    made = await counting(both)
    daemons = {
        "containerd": both.delegate,
        "protectd": both.node.protectd.daemon,
        "xenpod-cri": both.node.daemon,
    }
    chosen = [daemon for name, daemon in daemons.items() if who in (name, "all")]
    await asyncio.gather(*(daemon.crash() for daemon in chosen))
    for daemon in chosen:
        await daemon.start()
    async with both.node.client() as client:
        await answers(client)
    await go_on(both, made)
    for pod, container in made.values():
        await both.client.remove_container(container)
        await both.client.remove_pod(pod.id)
    assert await both.pods() == [] and await both.direct.pods() == []


async def test_zones_while_containerd_is_away(both: Mixed) -> None:
    made = await counting(both)
    await both.delegate.crash()
    await zones_work(both, made)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await both.pod("late", HOST)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert str(both.delegate.socket) in (failed.value.details() or "")
    assert sorted(await both.pods()) == sorted(pod.id for pod, _ in made.values()), "as it last said"
    assert [one.state for one in await listed(both)] == [cri.CONTAINER_RUNNING] * 2
    await both.delegate.start()
    await answers(both.client)
    await go_on(both, made)


async def test_zones_while_containerd_answers_nothing(both: Mixed) -> None:
    made = await counting(both)
    both.delegate.stall()
    try:
        await zones_work(both, made)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await both.status(made[HOST][1])
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert str(both.delegate.socket) in (failed.value.details() or ""), "it is ours, and says whose fault"
        assert sorted(await both.pods()) == sorted(pod.id for pod, _ in made.values()), "as it last said"
    finally:
        both.delegate.go_on()
    await answers(both.client)
    await go_on(both, made)


async def zones_work(both: Mixed, made: dict[str, tuple[Pod, str]]) -> None:
    """Check that a zone can live its whole life, and that lists have this zone and the earlier zones."""
    await go_on(both, made, [ZONE])
    pod = await both.pod("beside", ZONE)
    container = await both.started(pod)
    assert await both.output(container, "hostname") == "beside"
    assert {pod.id, made[ZONE][0].id} <= set(await both.pods())
    assert {container, made[ZONE][1]} <= set(await both.containers())
    stats = await both.runtime.ListContainerStats(cri.ListContainerStatsRequest(), timeout=PATIENCE)
    assert made[ZONE][1] in {one.attributes.id for one in stats.stats}
    await both.client.remove_container(container)
    await both.client.remove_pod(pod.id)


async def listed(both: Mixed) -> list[Any]:
    return list((await both.runtime.ListContainers(cri.ListContainersRequest(), timeout=PATIENCE)).containers)


async def test_containerd_is_not_there_at_the_start(both: Mixed) -> None:
    made = await counting(both)
    await asyncio.gather(both.delegate.crash(), both.node.daemon.crash())
    await both.node.daemon.start()
    async with both.node.client() as client:
        reply = await client.runtime.Status(cri.StatusRequest(), timeout=PATIENCE, wait_for_ready=True)
        conditions = {one.type: one for one in reply.status.conditions}
        assert conditions["RuntimeReady"].status
        (delegate,) = broken(reply)
        assert str(both.delegate.socket) in delegate.message
    assert await both.output(made[ZONE][1], "echo hello") == "hello"
    pod = await both.pod("beside", ZONE)
    container = await both.started(pod)
    assert await both.pods(id=pod.id) == [pod.id] and await both.containers(id=container) == [container]
    await both.client.remove_pod(pod.id)
    # A list without containerd's pods would have the kubelet take them for ended.
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await both.pods()
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert str(both.delegate.socket) in (failed.value.details() or "")
    await both.delegate.start()
    await answers(both.client)
    await go_on(both, made)


async def answers(client: Client) -> None:
    """Wait until both runtimes are ready again."""
    left: list[Any] = []

    async def ready() -> bool:
        nonlocal left
        left = broken(await client.runtime.Status(cri.StatusRequest(), wait_for_ready=True))
        return not left

    await until(ready, PATIENCE, lambda: left)
