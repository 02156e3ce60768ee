"""Statistics, updates and sizes, over agents in memory: some silent, some lying."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemonkit.faults import Missing, Refused
from protect.assembly import Assembly
from protect.channel.frames import Frame, Type
from protect.server import statistics
from protect.workloads import control, start
from protect.zones import stats
from protect.zones.size.resize import ZoneSize
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import MIB, hasten, resize, running, workload_spec, zone_spec
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

ZONES = ("z1", "z2", "z3")


@pytest.fixture
async def protectd(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    async with running(tmp_path, toolstack) as protectd:
        for number, zone in enumerate(ZONES, 1):
            await protectd.launcher.launch(zone_spec(zone))
            await protectd.creation.create(workload_spec(tmp_path, f"w{number}", zone))
            await start.start(protectd.registry, protectd.ports.volumes, f"w{number}")
            answers(toolstack.of_zone(zone).agent)
        yield protectd


def answers(agent: SimAgent, **zone: Any) -> None:
    """From now on GetStats gets rows of its containers, with a duplicate and a row of another zone."""
    plain = SimAgent._call.__get__(agent)

    def call(frame: Frame) -> None:
        request = pb.Request.FromString(frame.payload)
        if request.WhichOneof("op") != "get_stats" or "get_stats" in agent.unanswered:
            plain(frame)
            return
        agent.requests.append(request)
        own = [container for container, _ in agent.processes]
        rows = [pb.ContainerStats(id=one, cpu_usage_ns=5) for one in [*own, *own, "foreign"]]
        reply = pb.Reply(stats=pb.Stats(containers=rows, zone=pb.ZoneStats(**zone)))
        agent.send(Frame(Type.REPLY, frame.stream, reply.SerializeToString()))

    agent._call = call  # type: ignore[method-assign]


def asked(agent: SimAgent) -> int:
    """The number of questions to the agent."""
    return sum(request.WhichOneof("op") == "get_stats" for request in agent.requests)


async def test_each_zone_is_asked_once(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    found = await stats.gather(protectd.config.timeouts, protectd.registry.zones.values())
    assert {zone: [row.id for row in one.workloads] for zone, one in found.items()} == {
        "z1": ["w1"],
        "z2": ["w2"],
        "z3": ["w3"],
    }
    both = await asyncio.gather(
        *(stats.gather(protectd.config.timeouts, protectd.registry.zones.values()) for _ in range(5))
    )
    assert all(len(one) == len(ZONES) for one in both)
    assert [asked(toolstack.of_zone(zone).agent) for zone in ZONES] == [2, 2, 2]  # five callers share a call


async def test_a_question_takes_no_task(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    """A node has hundreds of zones, and is asked every few seconds: a task costs more than the answer."""
    agents = [toolstack.of_zone(zone).agent for zone in ZONES]
    for agent in agents:
        agent.unanswered.add("get_stats")
    before = asyncio.all_tasks()
    asking = asyncio.create_task(stats.gather(protectd.config.timeouts, protectd.registry.zones.values()))
    await until(lambda: all(map(asked, agents)))
    assert asyncio.all_tasks() - before == {asking}
    asking.cancel()


async def test_workloads_come_from_their_zones(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    rows = await stats.of_workloads(protectd.registry, protectd.config.timeouts, ["w1", "w1", "w3"])
    assert [(zone, row.id, row.cpu_usage_ns) for zone, row in rows] == [("z1", "w1", 5), ("z3", "w3", 5)]
    assert asked(toolstack.of_zone("z2").agent) == 0
    assert len(await stats.of_workloads(protectd.registry, protectd.config.timeouts, [])) == 3
    with pytest.raises(Missing):
        await stats.of_workloads(protectd.registry, protectd.config.timeouts, ["nobody"])


async def test_a_silent_zone_delays_nobody(
    protectd: Assembly, toolstack: MemoryToolstack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "QUIET_SECONDS", 1.0)
    silent = toolstack.of_zone("z2").agent
    silent.unanswered.add("get_stats")
    assert list(await stats.gather(protectd.config.timeouts, protectd.registry.zones.values())) == [
        "z1",
        "z3",
    ]
    monkeypatch.setattr(stats, "QUIET_SECONDS", 600.0)
    hasten(protectd, stats=600.0)  # no call waits: the zone is known as late
    async with asyncio.timeout(60):
        for _ in range(3):
            assert list(await stats.gather(protectd.config.timeouts, protectd.registry.zones.values())) == [
                "z1",
                "z3",
            ]
    assert asked(silent) == 1


async def test_a_late_answer_is_used_until_the_next(
    protectd: Assembly, toolstack: MemoryToolstack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(await stats.gather(protectd.config.timeouts, protectd.registry.zones.values())) == 3
    monkeypatch.setattr(stats, "QUIET_SECONDS", 0.05)
    late = toolstack.of_zone("z2").agent
    late.unanswered.add("get_stats")
    found = await stats.gather(protectd.config.timeouts, protectd.registry.zones.values())
    assert [row.id for row in found["z2"].workloads] == ["w2"]  # as in its last answer
    monkeypatch.setattr(stats, "KEPT_SECONDS", 0.0)
    assert "z2" not in await stats.gather(protectd.config.timeouts, protectd.registry.zones.values())


async def test_a_lone_zone_gets_all_the_time_there_is(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    agent = toolstack.of_zone("z1").agent
    agent.unanswered.add("get_stats")
    begun = time.monotonic()
    assert await stats.gather(protectd.config.timeouts, [protectd.registry.zones["z1"]]) == {}
    assert time.monotonic() - begun >= protectd.config.timeouts.stats * 0.9


async def test_a_dying_zone_is_left_out(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    toolstack.of_zone("z2").agent.unanswered.add("get_stats")
    question = asyncio.create_task(stats.gather(protectd.config.timeouts, protectd.registry.zones.values()))
    await until(lambda: bool(toolstack.of_zone("z2").agent.requests))
    toolstack.kill("z2")
    assert list(await question) == ["z1", "z3"]
    await until(lambda: bool(protectd.registry.zones["z2"].end))
    assert list(await stats.gather(protectd.config.timeouts, protectd.registry.zones.values())) == [
        "z1",
        "z3",
    ]


async def test_false_statistics_of_a_zone_are_left_out(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    wrong = pb.Pressure(some_avg10=math.nan)
    names = ["eth0", "", "x" * 16, "bell\a", "eth1"]
    answers(
        toolstack.of_zone("z1").agent,
        timestamp_ns=2**62,
        cpu_pressure=wrong,
        memory_pressure=pb.Pressure(some_avg10=1000),
        io_pressure=pb.Pressure(some_avg10=12.5, some_total_us=3),
        interfaces=[pb.InterfaceStats(name=name, rx_bytes=7) for name in names]
        + [pb.InterfaceStats(name="e")] * 99,
    )
    found = await stats.gather(protectd.config.timeouts, [protectd.registry.zones["z1"]])
    (row,) = statistics.zone_stats(found.items(), {}).rows
    assert abs(row.timestamp_ns - time.time_ns()) < 60 * 10**9
    assert not row.HasField("cpu_pressure") and not row.HasField("memory_pressure")
    assert (row.io_pressure.some_avg10, row.io_pressure.some_total_us) == (12.5, 3)
    assert [one.name for one in row.interfaces][:2] == ["eth0", "eth1"] and len(row.interfaces) <= 32
    assert row.interfaces[0].rx_bytes == 7


async def test_an_update_reaches_the_agent(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    agent = toolstack.of_zone("z1").agent
    await control.update(protectd.registry, "w1", b'{"cpu": {}}')
    sent = agent.requests[-1].update_container
    assert (sent.id, sent.resources_json) == ("w1", b'{"cpu": {}}')
    agent.errors["update_container"] = pb.Error(code=9, message="update: w1: busy")
    with pytest.raises(Refused, match="busy"):
        await control.update(protectd.registry, "w1", b"{}")
    with pytest.raises(Missing):
        await control.update(protectd.registry, "nobody", b"{}")


async def test_ended_zone_and_workload_are_not_updated(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    toolstack.kill("z1")
    await until(lambda: bool(protectd.registry.zones["z1"].end))
    with pytest.raises(Refused):
        await control.update(protectd.registry, "w1", b"{}")
    with pytest.raises(Refused):
        await resize(protectd, "z1", ZoneSize(1, 1))


async def test_a_resize_beyond_the_zone_names_its_limits(protectd: Assembly) -> None:
    assert await resize(protectd, "z1", ZoneSize()) == []
    assert await resize(protectd, "z1", ZoneSize(256 * MIB, 1)) == []
    memory, vcpus = await resize(protectd, "z1", ZoneSize(512 * MIB, 4))
    assert "512 MiB wanted, the zone can have 256 MiB" in memory and "4 wanted, the zone can have 1" in vcpus
    with pytest.raises(Missing):
        await resize(protectd, "nobody", ZoneSize())
