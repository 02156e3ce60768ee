"""Events of real pods, also of what happens while xenpod-cri is away."""

from __future__ import annotations

from dataclasses import replace

import grpc.aio
import pytest

from tests.support.cri.cri_daemons import container_status, needs_node
from tests.support.cri.events import Events
from tests.support.cri.stage import Stage
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

CREATED, STARTED = cri.CONTAINER_CREATED_EVENT, cri.CONTAINER_STARTED_EVENT
STOPPED, DELETED = cri.CONTAINER_STOPPED_EVENT, cri.CONTAINER_DELETED_EVENT


async def test_events_of_a_pods_life_arrive_in_order(stage: Stage) -> None:
    events = Events(stage.client)
    pod = await stage.client.run_pod("web")
    short = await stage.started(pod, "exit 3")
    found = await events.next(5)
    assert [(one.container_event_type, one.container_id) for one in found] == [
        (CREATED, pod.id), (STARTED, pod.id), (CREATED, short), (STARTED, short), (STOPPED, short),
    ]  # fmt: skip
    assert found[-1].containers_statuses[0].exit_code == 3
    assert found[1].pod_sandbox_status.network.ip
    await stage.client.remove_container(short)
    assert [one.container_event_type for one in await events.next(1)] == [DELETED]
    events.close()


async def test_removal_of_running_containers_tells_their_exits(stage: Stage) -> None:
    """RemoveContainer of one, then RemovePodSandbox with the rest."""
    events = Events(stage.client)
    pod = await stage.client.run_pod("web")
    ended = await stage.started(pod, "exit 3", "ended")
    first, second = [await stage.started(pod, "exec sleep 600", name) for name in ("first", "second")]
    await stage.exited(ended)
    await stage.client.remove_container(first)
    await stage.client.remove_pod(pod.id)
    # Nine events until the removals, then seven.
    found = (await _of_pod(events, pod.id, 16))[9:]
    events.close()
    assert [(one.container_event_type, one.container_id) for one in found[:4]] == [
        (STOPPED, first), (DELETED, first), (STOPPED, second), (STOPPED, pod.id),
    ]  # fmt: skip
    assert [one.container_event_type for one in found[4:]] == [DELETED] * 3
    running = {ended: (cri.CONTAINER_EXITED, 3), second: (cri.CONTAINER_RUNNING, 0)}
    killed = {ended: (cri.CONTAINER_EXITED, 3), second: (cri.CONTAINER_EXITED, 137)}
    assert [_states(one) for one in found[:4]] == [
        {first: (cri.CONTAINER_EXITED, 137), **running}, running, killed, killed,
    ]  # fmt: skip
    own = next(one for one in found[0].containers_statuses if one.id == first)
    assert own.started_at < own.finished_at and own.reason == "Error"


async def _of_pod(events: Events, pod: str, count: int) -> list[cri.ContainerEventResponse]:
    """The next events of a pod; the stream also has those of other tests."""
    found: list[cri.ContainerEventResponse] = []
    while len(found) < count:
        found += [one for one in await events.next(1) if one.pod_sandbox_status.id == pod]
    return found


def _states(event: cri.ContainerEventResponse) -> dict[str, tuple[int, int]]:
    return {one.id: (one.state, one.exit_code) for one in event.containers_statuses}


async def test_container_end_during_an_outage_of_the_daemon_gets_an_event(stage: Stage) -> None:
    pod = await stage.client.run_pod("web")
    script = "trap 'exit 9' TERM; touch /ready; while :; do sleep 0.05; done"
    container = await stage.started(pod, script)
    await stage.output(container, "until [ -e /ready ]; do sleep 0.05; done")
    await stage.node.daemon.stop()
    async with stage.node.protectd.clients() as clients:
        await clients.workloads.SignalWorkload(pb.SignalWorkloadRequest(id=container, signal=15), timeout=60)
        ended = await clients.workloads.WaitWorkload(pb.WaitWorkloadRequest(id=container), timeout=60)
        assert ended.exit_code == 9
    await stage.node.daemon.start()
    async with stage.node.client() as client:
        events = Events(client)
        (found,) = await events.next(1)
        assert (found.container_event_type, found.container_id) == (STOPPED, container)
        assert found.containers_statuses[0].exit_code == 9
        assert found.containers_statuses[0].finished_at == ended.finished_at_ns
        events.close()


async def both_die(stage: Stage) -> None:
    """Kill both daemons, and start them again."""
    await stage.node.daemon.crash()
    await stage.node.protectd.daemon.crash()
    await stage.node.start()


async def test_unknown_command_ends_its_container_at_start(stage: Stage) -> None:
    """The pod goes on; the reason survives the death of both daemons."""
    pod = await stage.client.run_pod("web")
    container = await stage.create(pod, command=["/no/such/command"])
    await both_die(stage)
    async with stage.node.client() as client:
        events = Events(client)
        with pytest.raises(grpc.aio.AioRpcError, match="/no/such/command") as failed:
            await client.start(container)
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        (found,) = await events.next(1)
        assert (found.container_event_type, found.container_id) == (STOPPED, container)
        before = await container_status(client, container)
        assert (before.exit_code, before.reason, before.started_at) == (128, "StartError", 0)
        assert "/no/such/command" in before.message
        assert found.containers_statuses[0] == before
        assert client.log(pod).read_bytes() == b""
        events.close()
    await both_die(stage)
    async with stage.node.client() as client:
        assert await container_status(client, container) == before
        await client.remove_container(container)
        again = replace(stage, client=client)
        assert await again.output(await again.started(pod, "exec sleep 60"), "echo up") == "up"
