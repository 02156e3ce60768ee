"""Callers' views of a zone's figures and connections: agents lie, links break."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import TIMEOUT, Served, served
from tests.support.protect.zones import failing
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2
from xenpod_proto.protect.v1 import protect_pb2 as pb

HOUR = 3600 * 10**9
AVERAGES = [field.name for field in channel_pb2.Pressure.DESCRIPTOR.fields if "avg" in field.name]


@pytest.fixture
async def node(short_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Served]:
    """A node with a zone and a workload in it."""
    async with served(short_path, toolstack) as node:
        await node.create_zone()
        await node.create()
        await node.start()
        yield node


async def figures(node: Served, agent_says: channel_pb2.ZoneStats | None = None) -> pb.ZoneStatsRow:
    """The zone's row, and its workload's row; the agent gives both the same figures."""
    zone = agent_says or channel_pb2.ZoneStats()
    own = channel_pb2.ContainerStats.FromString(b"")
    own.id, own.timestamp_ns, own.cpu_usage_ns = "w1", zone.timestamp_ns, 5
    for name in ("cpu_pressure", "memory_pressure", "io_pressure"):
        if zone.HasField(name):
            getattr(own, name).CopyFrom(getattr(zone, name))
    twice = channel_pb2.ContainerStats(id="w1", cpu_usage_ns=6)
    foreign = channel_pb2.ContainerStats(id="another", cpu_usage_ns=7)
    node.agent().stats = channel_pb2.Stats(zone=zone, containers=[own, twice, foreign])
    request = pb.ZoneStatsRequest(ids=["z1"], details=True)
    return (await node.clients.zones.ZoneStats(request, timeout=TIMEOUT)).rows[0]


async def test_foreign_workloads_have_no_row(node: Served) -> None:
    row = await figures(node)
    assert [(one.id, one.cpu_usage_ns) for one in row.workloads] == [("w1", 5)]
    rows = (await node.clients.workloads.WorkloadStats(pb.WorkloadStatsRequest(), timeout=TIMEOUT)).rows
    assert [(one.id, one.zone_id) for one in rows] == [("w1", "z1")]


async def test_agent_is_asked_for_details_only_on_request(node: Served) -> None:
    """Details are expensive: an answer has details only on request.

    A query for workloads has no figures of the zone.
    """
    zones, workloads = node.clients.zones, node.clients.workloads

    def last() -> tuple[bool, bool]:
        asked = [one.get_stats for one in node.agent().requests if one.HasField("get_stats")]
        return asked[-1].details, asked[-1].containers_only

    await zones.ZoneStats(pb.ZoneStatsRequest(ids=["z1"]), timeout=TIMEOUT)
    assert last() == (False, False)
    await zones.ZoneStats(pb.ZoneStatsRequest(ids=["z1"], details=True), timeout=TIMEOUT)
    assert last() == (True, False)
    await workloads.WorkloadStats(pb.WorkloadStatsRequest(), timeout=TIMEOUT)
    assert last() == (False, True)


@pytest.mark.parametrize("off", [-HOUR, HOUR])
async def test_an_impossible_time_is_now(node: Served, off: int) -> None:
    before = time.time_ns()
    row = await figures(node, channel_pb2.ZoneStats(timestamp_ns=before + off))
    for stamp in (row.timestamp_ns, row.workloads[0].timestamp_ns):
        assert before <= stamp <= time.time_ns()


async def test_a_possible_time_is_kept(node: Served) -> None:
    stamp = time.time_ns() - 10**9
    row = await figures(node, channel_pb2.ZoneStats(timestamp_ns=stamp))
    assert (row.timestamp_ns, row.workloads[0].timestamp_ns) == (stamp, stamp)


@pytest.mark.parametrize("kind", ["cpu_pressure", "memory_pressure", "io_pressure"])
@pytest.mark.parametrize("average", AVERAGES)
async def test_an_average_beyond_a_percentage_is_left_out(node: Served, kind: str, average: str) -> None:
    for value, there in ((0.0, True), (100.0, True), (100.1, False), (-0.1, False), (math.nan, False)):
        zone = channel_pb2.ZoneStats()
        getattr(zone, kind).CopyFrom(channel_pb2.Pressure(some_total_us=1))
        setattr(getattr(zone, kind), average, value)
        row = await figures(node, zone)
        for one in (row, row.workloads[0]):
            assert one.HasField(kind) is there, value  # type: ignore[arg-type]
            if there:
                assert getattr(getattr(one, kind), average) == value
                assert getattr(one, kind).some_total_us == 1


async def test_interfaces_have_possible_names(node: Served) -> None:
    names = ["eth0", "", "x" * 15, "x" * 16, "e\n", "é", *(f"eth{number}" for number in range(1, 40))]
    interfaces = [channel_pb2.InterfaceStats(name=name, rx_bytes=3) for name in names]
    row = await figures(node, channel_pb2.ZoneStats(interfaces=interfaces))
    told = [one.name for one in row.interfaces]
    assert told[:3] == ["eth0", "x" * 15, "eth1"] and 10 < len(told) <= 32
    assert all(one.rx_bytes == 3 for one in row.interfaces)


class Dialed:
    """A caller of Dial."""

    def __init__(self, node: Served, port: int = 80) -> None:
        self.inputs: asyncio.Queue[pb.DialInput | None] = asyncio.Queue()
        self.inputs.put_nowait(pb.DialInput(start=pb.DialStart(zone_id="z1", port=port)))
        self.call = node.clients.zones.Dial(self._sent(), timeout=TIMEOUT)
        self.outputs = aiter(self.call)

    async def _sent(self) -> AsyncIterator[pb.DialInput]:
        while message := await self.inputs.get():
            yield message

    async def next(self) -> pb.DialOutput:
        return await anext(self.outputs)

    async def connected(self) -> Dialed:
        assert (await self.next()).HasField("connected")
        return self


def streams(agent: SimAgent) -> tuple[int, int]:
    """The streams of the last connection: to the port, and from it."""
    return agent.dialed[-1].in_stream, agent.dialed[-1].out_stream


async def test_a_connection_continues_over_a_broken_link(node: Served) -> None:
    """The agent lists the connection again, and its caller keeps it."""
    agent = node.agent()
    dialed = await Dialed(node).connected()
    into, out = streams(agent)
    agent.cut()
    await until(lambda: sum(one.HasField("list_processes") for one in agent.requests) == 1)
    await node.turns()
    agent.write(out, b"from the port")
    assert (await dialed.next()).data == b"from the port"
    dialed.inputs.put_nowait(pb.DialInput(data=b"to the port"))
    await until(lambda: agent.inputs[into].read == b"to the port")
    agent.end(out)
    assert (await dialed.next()).eof
    dialed.inputs.put_nowait(pb.DialInput(eof=True))
    await until(lambda: agent.inputs[into].eof)
    assert [output async for output in dialed.outputs] == []


async def test_a_connection_without_a_caller_is_hung_up(node: Served) -> None:
    """A connection whose caller has gone, and an invented connection in the agent's list."""
    agent = node.agent()
    dialed = await Dialed(node).connected()
    into, out = streams(agent)
    dialed.call.cancel()
    await until(lambda: agent.outputs[out].forgotten and agent.inputs[into].eof)
    agent.dialed.clear()
    agent._dial()
    into, out = streams(agent)
    agent.cut()
    await until(lambda: agent.outputs[out].forgotten and agent.inputs[into].eof)
    assert agent.faults == []


async def test_dial_of_a_closed_port_is_refused(node: Served) -> None:
    node.agent().errors["dial"] = channel_pb2.Error(code=9, message="dial: port 80: connection refused")
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await Dialed(node).next()
    assert "connection refused" in said[0]


async def test_connections_are_counted_while_they_last(node: Served) -> None:
    """Ended connections make place for others."""
    made = [await Dialed(node).connected() for _ in range(3)]
    for one in made:
        one.call.cancel()
    agent = node.agent()
    await until(lambda: all(agent.outputs[each.out_stream].forgotten for each in agent.dialed))
    made = []
    async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
        while len(made) < 1000:
            made.append(await Dialed(node).connected())
    assert f"it has {len(made)} connections, as many as it may" in said[0]


async def test_a_connection_ends_with_its_zone(node: Served, toolstack: MemoryToolstack) -> None:
    dialed = await Dialed(node).connected()
    toolstack.kill("z1")
    async with failing(grpc.StatusCode.FAILED_PRECONDITION):
        await dialed.next()
