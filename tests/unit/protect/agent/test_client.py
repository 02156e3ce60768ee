"""The client of an agent: the zone's end, leaving callers, invalid answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from daemonkit.faults import Fault, Refused, TooLate, Unreachable
from protect.agent import agent_client as clients
from protect.agent import queries, replies
from protect.agent.agent_client import AgentClient
from protect.assembly import Assembly
from protect.channel.frames import Frame
from protect.model.container import ContainerSpec
from protect.model.errors import ProtocolViolation
from protect.model.lifetime import End
from protect.model.process import ProcessName, ProcessState, Streams
from protect.model.statistics import InterfaceStats, Pressure, StatsKind, WorkloadStats, ZoneFigures
from protect.server import statistics
from tests.support.agent.agent_sim import SimAgent
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2 as outward

PROCESS = ProcessName("w1", "e1")


def container(name: str = "w1") -> ContainerSpec:
    return ContainerSpec(name, b"{}", (), False, True, (), (), ())


Call = Callable[[AgentClient], Awaitable[object]]
CALLS: dict[str, Call] = {
    "create_container": lambda client: client.create_container(container()),
    "start_container": lambda client: client.start_container("w1"),
    "update_container": lambda client: client.update_container("w1", b"{}"),
    "delete_container": lambda client: client.delete_container("w1"),
    "exec_process": lambda client: client.exec_process(PROCESS, b"{}", tty=False, stdin=True),
    "delete_exec": lambda client: client.delete_exec(PROCESS),
    "signal_process": lambda client: client.signal_process(PROCESS, 9, every=True),
    "resize_terminal": lambda client: client.resize_terminal(PROCESS, 24, 80),
    "dial": lambda client: client.dial(80),
    "get_stats": lambda client: queries.stats(client, StatsKind.ZONE, lambda name: True),
    "get_facts": lambda client: client.facts("1.0"),
    "list_processes": lambda client: client.list_processes(),
}
CREATING = ("create_container", "exec_process", "dial")


@pytest.fixture
def client(protectd: Assembly) -> AgentClient:
    return protectd.registry.zones["z1"].agent


def asked(agent: SimAgent, operation: str) -> bool:
    return any(request.WhichOneof("op") == operation for request in agent.requests)


@pytest.mark.parametrize("operation", CALLS)
async def test_a_zones_end_fails_an_open_call(
    protectd: Assembly, client: AgentClient, agent: SimAgent, operation: str
) -> None:
    agent.unanswered.add(operation)
    calling = asyncio.ensure_future(CALLS[operation](client))
    await until(lambda: asked(agent, operation))
    protectd.registry.zones["z1"].end.declare("it is over")
    with pytest.raises(Refused, match="use zone z1: it is over"):
        async with asyncio.timeout(60):
            await calling


@pytest.mark.parametrize("operation", CALLS)
async def test_an_ended_zone_gets_no_call(
    protectd: Assembly, client: AgentClient, agent: SimAgent, operation: str
) -> None:
    protectd.registry.zones["z1"].end.declare("it is over")
    with pytest.raises(Refused, match="use zone z1: it is over"):
        await CALLS[operation](client)
    assert not asked(agent, operation)


@pytest.mark.parametrize("operation", CREATING)
async def test_answer_for_a_cancelled_caller_leaves_no_streams(
    client: AgentClient, agent: SimAgent, operation: str
) -> None:
    """The caller hears of its cancellation once the agent has answered, and nothing is left to be owned."""
    agent.reading.clear()
    calling = asyncio.ensure_future(CALLS[operation](client))
    for _ in range(100):
        await asyncio.sleep(0)
        calling.cancel()
    assert not calling.done()
    agent.reading.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert asked(agent, operation) and agent.outputs
    await until(lambda: all(output.forgotten for output in agent.outputs.values()))
    assert client.connections == set()
    table = client._link._streams  # type: ignore[union-attr]
    assert not table._outputs and not [number for number in table._inputs if operation != "dial"]
    if operation == "dial":
        await until(lambda: all(source.eof for source in agent.inputs.values()))


async def test_a_start_is_waited_for_longer_than_other_calls(
    client: AgentClient, agent: SimAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the creation, answered early, comes first."""
    await client.create_container(container())
    answer, held = agent._call, list[Frame]()
    monkeypatch.setattr(agent, "_call", held.append)
    client.call_timeout = 0.05
    starting = asyncio.ensure_future(client.start_container("w1"))
    await until(lambda: held)
    with pytest.raises(TooLate):
        await client.update_container("w1", b"{}")
    assert not starting.done()
    for frame in held:
        answer(frame)
    await starting


async def test_a_dialed_connection_is_known_until_its_hang_up(client: AgentClient, agent: SimAgent) -> None:
    made = await client.dial(80)
    assert client.connections == {made.into}
    await client.hang_up(made)
    assert client.connections == set()
    await until(lambda: agent.outputs[made.out].given_up and agent.inputs[made.into].eof)


async def test_nobody_calls_before_the_agent_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_ADOPTION_SECONDS", 0.01)
    client = AgentClient("z1", End(), 1.0, set)
    with pytest.raises(Unreachable, match="has not answered yet"):
        await client.facts("")
    client.serve()
    with pytest.raises(Unreachable, match="has not answered yet"):
        await client.facts("")
    assert not client.connected
    await client.close()


@pytest.mark.parametrize(
    "untrusted",
    [
        Streams(1, 0, 3),
        Streams(0, 2, 3),
        Streams(1, 2, 0),
        Streams(1, 2, 2),
        Streams(1, 2, 9),
    ],
)
def test_wrong_streams_are_a_violation(untrusted: Streams) -> None:
    """The request is for stdin without a terminal; stream 9 belongs to another process."""
    replies.check_streams("z1", Streams(1, 2, 3), {9}, tty=False, stdin=True)
    with pytest.raises(ProtocolViolation, match="gave streams"):
        replies.check_streams("z1", untrusted, {9}, tty=False, stdin=True)


async def test_wrong_streams_are_dropped(client: AgentClient, agent: SimAgent) -> None:
    plain = agent._create
    agent._create = lambda ref, tty, stdin: plain(ref, tty, False)  # type: ignore[method-assign]
    with pytest.raises(Fault, match="gave streams 0, "):
        await client.create_container(container())
    await until(lambda: all(output.forgotten for output in agent.outputs.values()))


def test_lists_of_processes_are_read() -> None:
    ref = pb.ProcessRef(container_id="w", exec_id="e")
    untrusted = pb.ProcessList(
        processes=[
            pb.Process(process=ref, state=pb.PROCESS_STATE_RUNNING, started_at_ns=5),
            pb.Process(process=ref, state=77),  # type: ignore[arg-type]
            pb.Process(process=ref, exited=pb.ProcessExited(process=ref, exit_code=3, oom_killed=True)),
        ],
        connections=[pb.Dialed(in_stream=1, out_stream=2), pb.Dialed(out_stream=4)],
    )
    listed = replies.process_list("z1", untrusted)
    first, second, third = listed.processes
    assert (first.name, first.state, first.started_at_ns, first.exited) == (
        ProcessName("w", "e"),
        ProcessState.RUNNING,
        5,
        None,
    )
    assert second.state is None
    assert third.exited is not None and (third.exited.exit_code, third.exited.oom_killed) == (3, True)
    assert [(one.into, one.out) for one in listed.connections] == [(1, 2)]
    many = pb.ProcessList(processes=[pb.Process(process=ref)] * 5000)
    assert len(replies.process_list("z1", many).processes) == 4096


def plain_fields(message: type) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields if field.message_type is None}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "theirs", "ours"),
    [
        (WorkloadStats, pb.ContainerStats, outward.WorkloadStatsRow),
        (ZoneFigures, pb.ZoneStats, outward.ZoneStatsRow),
        (InterfaceStats, pb.InterfaceStats, outward.InterfaceStats),
        (Pressure, pb.Pressure, outward.Pressure),
    ],
)
def test_every_figure_is_passed_on(value: type, theirs: type, ours: type) -> None:
    """The same names on both sides, and none is left out."""
    names = plain_fields(theirs) & plain_fields(ours)
    special = {"cpu_pressure", "memory_pressure", "io_pressure", "interfaces"}
    assert names == set(value._fields) - special  # type: ignore[attr-defined]


def test_figures_come_from_the_agent() -> None:
    pressure = pb.Pressure(some_avg10=1.5, full_total_us=9)
    row = pb.ContainerStats(id="w", cpu_usage_ns=5, io_writes=6, memory_pressure=pressure)
    quiet = pb.Pressure()
    zone = pb.ZoneStats(
        cpu_usage_ns=7, io_pressure=quiet, interfaces=[pb.InterfaceStats(name="eth0", rx_bytes=8)]
    )
    stats = replies.stats(pb.Stats(containers=[row], zone=zone), {"w"}.__contains__)
    (passed_on,) = statistics.zone_stats([("z", stats)], {}).rows
    assert (passed_on.zone_id, passed_on.cpu_usage_ns, passed_on.interfaces[0].rx_bytes) == ("z", 7, 8)
    (workload,) = passed_on.workloads
    assert (workload.id, workload.zone_id, workload.cpu_usage_ns, workload.io_writes) == ("w", "z", 5, 6)
    assert workload.memory_pressure.SerializeToString() == pressure.SerializeToString()
    assert not workload.HasField("cpu_pressure")
    assert passed_on.HasField("io_pressure")  # measured, and nothing waits
