"""Guarantees for protectd's callers beside hostile agents, failing starts, and concurrent calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from protect.channel.frames import Frame, Type
from tests.support.agent.agent_sim import SimAgent
from tests.support.agent.memory_transport import MemoryTransport
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import TIMEOUT, Served, served
from tests.support.protect.zones import failing
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2
from xenpod_proto.protect.v1 import protect_pb2 as pb

MOST_PROCESSES = channel_pb2.LIMIT_CONTAINERS + channel_pb2.LIMIT_EXECS


@pytest.fixture
async def node(short_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Served]:
    async with served(short_path, toolstack) as node:
        yield node


def asked(agent: SimAgent, operation: str) -> int:
    """The number of these requests to the agent."""
    return sum(request.WhichOneof("op") == operation for request in agent.requests)


def connect_request(interface: str = "eth0") -> pb.ConnectNetworkRequest:
    return pb.ConnectNetworkRequest(zone_id="z1", netns_path="/run/netns/p", interface=interface)


class Counted:
    """A transport that counts its written bytes."""

    def __init__(self, inner: MemoryTransport) -> None:
        self._inner = inner
        self.writes = 0

    async def read(self, limit: int) -> bytes:
        return await self._inner.read(limit)

    async def write(self, data: bytes) -> None:
        self.writes += 1
        await self._inner.write(data)

    async def close(self) -> None:
        await self._inner.close()


async def test_an_idle_link_sends_nothing(
    node: Served, toolstack: MemoryToolstack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent twice: neither calls, nor credits, nor input."""
    made: list[Counted] = []
    opening = toolstack.open_channel

    async def counted(domain: object) -> Counted:
        made.append(Counted(await opening(domain)))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(toolstack, "open_channel", counted)
    await node.create_zone()
    await node.create(stdin=True)
    await node.start()
    agent = node.agent()
    stream = agent.processes["w1", ""].created.stdout_stream
    agent.write(stream, (b"x" * 999 + b"\n") * 200)  # more than the agent may send at once
    await until(lambda: agent.outputs[stream].sent == 200_000)
    await node.turns()
    before = made[0].writes
    await node.turns()
    assert len(made) == 1 and made[0].writes == before


async def test_a_failed_start_gives_the_volumes_back(node: Served) -> None:
    """The kubelet unmounts the volumes' sources once the container has ended."""
    await node.create_zone()
    await node.create(volumes=[pb.Volume(name="v", host_path="/srv")])
    assert node.volumes.attached["z1"] == {"w1": ["v"]}
    node.agent().errors["start_container"] = channel_pb2.Error(code=13, message="no such file")
    async with failing(grpc.StatusCode.INTERNAL):
        await node.start()
    assert node.volumes.attached["z1"] == {}
    ended = await node.get()
    assert (ended.state, ended.reason) == (pb.WORKLOAD_STATE_EXITED, "StartError")
    assert "no such file" in ended.message


async def test_networks_are_connected_in_sequence(node: Served) -> None:
    await node.create_zone(interfaces=1)
    agent = node.agent()
    agent.unanswered.add("configure_network")
    calls = [node.clients.zones.ConnectNetwork(connect_request(), timeout=TIMEOUT) for _ in range(2)]
    await until(lambda: asked(agent, "configure_network"))
    await node.turns()
    assert asked(agent, "configure_network") == 1
    agent.unanswered.clear()
    # The first request's number is unknown; 1 configured the zone, 2 is the first.
    agent.send(Frame(Type.REPLY, 2, channel_pb2.Reply(done=channel_pb2.Empty()).SerializeToString()))
    await asyncio.gather(*calls)
    assert asked(agent, "configure_network") == 2


async def test_a_zone_is_destroyed_after_the_connect_of_its_network(
    node: Served, toolstack: MemoryToolstack
) -> None:
    """The connecting ends first, with the zone's end: a splice goes on in no zone that is gone."""
    await node.create_zone(interfaces=1)
    agent = node.agent()
    agent.unanswered.add("configure_network")
    connecting = node.clients.zones.ConnectNetwork(connect_request(), timeout=TIMEOUT)
    await until(lambda: asked(agent, "configure_network"))
    await node.clients.zones.DestroyZone(pb.DestroyZoneRequest(id="z1"), timeout=TIMEOUT)
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await connecting
    assert "destroyed" in said[0]
    assert toolstack.domains == {}


async def test_an_ended_zone_is_not_resized(node: Served, toolstack: MemoryToolstack) -> None:
    """Not even to its own size: the error is that no zone exists for the resize."""
    await node.create_zone()
    await node.create()
    toolstack.kill("z1")
    await node.wait()  # the end of a workload comes after the end of its zone
    asks = pb.ResizeZoneRequest(id="z1", resources=pb.ZoneResources(memory_bytes=1, vcpus=1))
    async with failing(grpc.StatusCode.FAILED_PRECONDITION):
        await node.clients.zones.ResizeZone(asks, timeout=TIMEOUT)


async def test_a_resize_reports_the_undone_parts(node: Served) -> None:
    sized = pb.ZoneResources(memory_bytes=256 << 20, memory_max_bytes=256 << 20, vcpus=1)
    zone = await node.create_zone(resources=sized)
    for memory, vcpus, count in (
        (256 << 20, 1, 0),
        (0, 0, 0),
        ((256 << 20) + 1, 1, 1),
        (1, 2, 2),
        (1 << 40, 9, 2),
    ):
        asks = pb.ResizeZoneRequest(id="z1", resources=pb.ZoneResources(memory_bytes=memory, vcpus=vcpus))
        answer = await node.clients.zones.ResizeZone(asks, timeout=TIMEOUT)
        assert len(answer.not_done) == count, answer.not_done
        assert answer.zone.resources == zone.resources
    assert "1048576 MiB wanted, the zone can have 256 MiB" in answer.not_done[0]
    assert "9 wanted, the zone can have 1" in answer.not_done[1]


def exits(agent: SimAgent, code: int, at_ns: int, *, exec_id: str = "", oom: bool = False) -> None:
    """The agent's word on the end of a process, true or not."""
    process = channel_pb2.ProcessRef(container_id="w1", exec_id=exec_id)
    exited = channel_pb2.ProcessExited(process=process, exit_code=code, exited_at_ns=at_ns, oom_killed=oom)
    agent.send(Frame(Type.EVENT, 0, channel_pb2.Event(process_exited=exited).SerializeToString()))
    for number in (
        agent.processes["w1", exec_id].created.stdout_stream,
        agent.processes["w1", exec_id].created.stderr_stream,
    ):
        agent.end(number)


async def cut_off(node: Served, cause: str) -> None:
    """The zone has broken a rule: the zone is dead, its workload was killed, and both records have the
    reason.
    """
    ended = await node.wait()
    assert (ended.exit_code, ended.reason) == (137, "ZoneRulesBroken")
    assert cause in ended.message
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await node.create("w2")
    assert cause in said[0]


@pytest.mark.parametrize("code", [0, 7, 255])
async def test_a_possible_exit_code_is_kept(node: Served, code: int) -> None:
    await node.create_zone()
    await node.create()
    await node.start()
    exits(node.agent(), code, time.time_ns())
    assert (await node.wait()).exit_code == code


@pytest.mark.parametrize(
    ("code", "reason"), [(0, "Completed"), (1, "Error"), (143, "Error"), (137, "OOMKilled")]
)
async def test_reported_oom_kill_counts_only_with_sigkill(node: Served, code: int, reason: str) -> None:
    """Agents of 0.1.0 also report OOM kills of other processes of the container."""
    await node.create_zone()
    await node.create()
    await node.start()
    exits(node.agent(), code, time.time_ns(), oom=True)
    ended = await node.wait()
    assert (ended.exit_code, ended.reason) == (code, reason)
    assert bool(ended.message) == (reason == "OOMKilled")


@pytest.mark.parametrize("code", [256, 2**31, 2**32 - 1])
async def test_an_agent_with_an_impossible_exit_code_is_cut_off(node: Served, code: int) -> None:
    await node.create_zone()
    await node.create()
    await node.start()
    exits(node.agent(), code, time.time_ns())
    await cut_off(node, f"exit code {code}")


async def test_an_agent_with_an_impossible_exit_code_of_an_exec_is_cut_off(node: Served) -> None:
    await node.create_zone()
    await node.create()
    await node.start()
    agent = node.agent()
    first = pb.ExecInput(start=pb.ExecStart(workload_id="w1", process=b"{}"))
    outputs = node.clients.workloads.Exec(iter([first]), timeout=TIMEOUT)
    await until(lambda: len(agent.processes) == 2)
    exits(agent, 256, time.time_ns(), exec_id=next(key[1] for key in agent.processes if key[1]))
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        async for _ in outputs:
            pass
    assert "exit code 256" in said[0]
    await cut_off(node, "exit code 256")


async def test_an_agent_with_an_impossible_exit_code_in_its_list_is_cut_off(node: Served) -> None:
    """After a reconnect the agent tells the exit code in another way."""
    await node.create_zone()
    await node.create()
    await node.start()
    agent = node.agent()
    process = agent.processes["w1", ""]
    process.state = channel_pb2.PROCESS_STATE_EXITED
    process.exited.process.CopyFrom(process.process)
    process.exited.exit_code = 256
    agent.cut()
    await cut_off(node, "exit code 256")


HOUR = 3600 * 10**9


@pytest.mark.parametrize("off", [-HOUR, HOUR, None])
async def test_an_impossible_time_of_an_end_is_now(node: Served, off: int | None) -> None:
    """Before the start, in the future, at the beginning of time: kubelets sort and prune by it."""
    await node.create_zone()
    await node.create()
    started = await node.start()
    exits(node.agent(), 0, 0 if off is None else time.time_ns() + off)
    ended = await node.wait()
    assert started.started_at_ns <= ended.finished_at_ns <= time.time_ns()


async def test_a_possible_time_of_an_end_is_kept(node: Served) -> None:
    """The agent's clock may be a little fast."""
    await node.create_zone()
    await node.create()
    started = await node.start()
    exits(node.agent(), 0, started.started_at_ns)
    assert (await node.wait()).finished_at_ns == started.started_at_ns


def list_more(agent: SimAgent, container_id: str, count: int) -> None:
    """The agent lists execs without a request."""
    for number in range(count):
        reference = channel_pb2.ProcessRef(container_id=container_id, exec_id=f"e{number}")
        state = channel_pb2.PROCESS_STATE_RUNNING
        key = (container_id, reference.exec_id)
        agent.processes[key] = channel_pb2.Process(process=reference, state=state)


async def test_unrequested_execs_are_ended(node: Served) -> None:
    """Execs of our workloads; other execs are left alone."""
    await node.create_zone()
    await node.create()
    await node.start()
    agent = node.agent()
    list_more(agent, "w1", 3)
    list_more(agent, "unknown", 1)
    agent.cut()
    await until(lambda: list(agent.processes) == [("w1", ""), ("unknown", "e0")])
    assert (await node.get()).state == pb.WORKLOAD_STATE_RUNNING


async def test_an_agent_may_list_many_processes(node: Served) -> None:
    await node.create_zone()
    await node.create()
    await node.start()
    agent = node.agent()
    list_more(agent, "unknown", MOST_PROCESSES - 1)
    agent.cut()
    await until(lambda: asked(agent, "list_processes"))
    await node.turns()
    assert (await node.get()).state == pb.WORKLOAD_STATE_RUNNING


async def test_an_agent_with_too_many_processes_in_its_list_is_cut_off(node: Served) -> None:
    await node.create_zone()
    await node.create()
    await node.start()
    list_more(node.agent(), "unknown", 2 * MOST_PROCESSES)
    node.agent().cut()
    await cut_off(node, "REPLY to list_processes with more than 512 fields in one message")


async def test_after_a_restart_earlier_ends_are_reported_and_running_execs_continue(
    short_path: Path, toolstack: MemoryToolstack
) -> None:
    async with served(short_path, toolstack) as node:
        await node.create_zone()
        for name in ("w1", "w2"):
            await node.create(name)
            await node.start(name)
        exits(node.agent(), 7, time.time_ns())
        before = await node.wait("w1")
    async with served(short_path, toolstack) as node:
        async with asyncio.timeout(TIMEOUT):
            assert await node.wait("w1") == before
            await until(lambda: asked(node.agent(), "list_processes"))
        assert (await node.get("w2")).state == pb.WORKLOAD_STATE_RUNNING
        waiting = asyncio.ensure_future(node.wait("w2"))
        toolstack.kill("z1")
        assert (await waiting).exit_code == 137
        request = pb.DeleteWorkloadRequest(id="w2")
        await node.clients.workloads.DeleteWorkload(request, timeout=TIMEOUT)
        async with failing(grpc.StatusCode.NOT_FOUND):
            await node.get("w2")
