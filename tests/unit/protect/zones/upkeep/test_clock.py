"""Clocks of zones: measured within a bracket, slewed or stepped, at once after a pause of the zone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from daemonkit.config import Seconds
from protect.assembly import Assembly
from protect.model.toolstack import Capabilities
from protect.zones.upkeep import clock
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import hasten, running, zone_spec
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

MS = 1_000_000


@pytest.fixture
async def protectd(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    toolstack.can = Capabilities(own_clocks=True)
    async with running(tmp_path, toolstack) as protectd:
        hasten(protectd, clock=600.0)
        yield protectd


async def _launched(protectd: Assembly, toolstack: MemoryToolstack) -> SimAgent:
    await protectd.launcher.launch(zone_spec())
    await _settled(protectd)
    return toolstack.of_zone("z1").agent


async def _settled(protectd: Assembly) -> None:
    await until(lambda: not protectd.registry.zones["z1"].clock.busy)


def _asked(agent: SimAgent) -> list[pb.SyncClock]:
    return [request.sync_clock for request in agent.requests if request.HasField("sync_clock")]


async def _corrected(protectd: Assembly, agent: SimAgent, ahead_ns: int) -> list[pb.SyncClock]:
    agent.requests.clear()
    agent.ahead_ns = ahead_ns
    protectd.clocks.begin(protectd.registry.zones["z1"])
    await _settled(protectd)
    return [asked for asked in _asked(agent) if asked.add_ns]


@pytest.mark.parametrize("ahead_ns", [-3600_000 * MS, -60 * MS, 60 * MS, 10**9 * MS])
async def test_a_large_error_is_stepped(
    protectd: Assembly, toolstack: MemoryToolstack, ahead_ns: int
) -> None:
    agent = await _launched(protectd, toolstack)
    assert await _corrected(protectd, agent, 0) == []
    (asked,) = await _corrected(protectd, agent, ahead_ns)
    assert asked.step and abs(agent.ahead_ns) <= 10 * MS


@pytest.mark.parametrize("ahead_ns", [-15 * MS, 15 * MS])
async def test_a_small_error_is_slewed(protectd: Assembly, toolstack: MemoryToolstack, ahead_ns: int) -> None:
    agent = await _launched(protectd, toolstack)
    (asked,) = await _corrected(protectd, agent, ahead_ns)
    assert not asked.step and abs(asked.add_ns + ahead_ns) <= 8 * MS


async def test_clock_is_set_when_the_zone_is_made(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    entered, gate = toolstack.gate("unpause")
    launching = asyncio.create_task(protectd.launcher.launch(zone_spec()))
    await entered.wait()
    agent = toolstack.of_zone("z1").agent
    agent.ahead_ns = -5000 * MS
    gate.set()
    await launching
    await until(lambda: abs(agent.ahead_ns) <= 10 * MS)


async def test_late_answers_count_less(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    """Half of a round trip of 2 s would put the zone's clock a second wrong."""
    agent = await _launched(protectd, toolstack)
    lags: Iterator[float] = iter((2.0, 0.5))
    agent.clock_lag = lambda: next(lags, 0.0)
    assert await _corrected(protectd, agent, 0) == []
    assert len(_asked(agent)) >= 3


async def test_late_answers_correct_only_a_surely_wrong_clock(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    agent = await _launched(protectd, toolstack)
    agent.clock_lag = lambda: 0.15
    assert await _corrected(protectd, agent, 0) == []
    assert len(_asked(agent)) == clock.READINGS
    agent.clock_lag = lambda: 0.15
    (asked,) = await _corrected(protectd, agent, 5000 * MS)
    assert asked.step and abs(agent.ahead_ns) <= 100 * MS


async def test_after_a_pause_the_clock_is_set_at_once(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    """A paused zone answers nothing; its clock stands still until the end of the pause."""
    agent = await _launched(protectd, toolstack)
    agent.reading.clear()
    protectd.clocks.begin(protectd.registry.zones["z1"])
    await asyncio.sleep(0.3)
    assert protectd.registry.zones["z1"].clock.busy
    agent.ahead_ns = -30_000 * MS
    resumed = time.monotonic()
    agent.reading.set()
    await until(lambda: abs(agent.ahead_ns) <= 10 * MS)
    assert time.monotonic() - resumed < protectd.config.timeouts.clock / 2, "only by the next turn"


async def test_now_and_then_and_when_the_hosts_is_set(
    protectd: Assembly, toolstack: MemoryToolstack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only tests/xen/inside/test_clock.py may set the host's clock, and tests that case."""
    from contextlib import contextmanager

    changed = asyncio.Event()

    @contextmanager
    def told() -> Iterator[asyncio.Event]:
        yield changed

    monkeypatch.setattr(clock, "clock_set", told)
    agent = await _launched(protectd, toolstack)
    keeping = asyncio.create_task(protectd.clocks.keep())
    agent.ahead_ns = -5000 * MS
    await asyncio.sleep(0.3)
    assert agent.ahead_ns == -5000 * MS
    changed.set()
    await until(lambda: abs(agent.ahead_ns) <= 10 * MS)
    keeping.cancel()
    hasten(protectd, clock=0.1)
    keeping = asyncio.create_task(protectd.clocks.keep())
    await asyncio.sleep(0)
    await _settled(protectd)
    agent.ahead_ns = -5000 * MS
    await until(lambda: abs(agent.ahead_ns) <= 10 * MS)
    keeping.cancel()


async def test_a_change_of_the_host_clock_repeats_the_measurement(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    agent = await _launched(protectd, toolstack)
    agent.reading.clear()
    agent.requests.clear()
    for _ in range(3):
        protectd.clocks.begin(protectd.registry.zones["z1"])
    await asyncio.sleep(0.1)
    agent.reading.set()
    await _settled(protectd)
    assert 2 <= len(_asked(agent)) <= 2 * clock.READINGS


async def test_a_change_of_the_host_clock_before_the_check_repeats_the_measurement(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    """However many turns of the loop later its timer tells: at the end of a round, too."""
    agent = await _launched(protectd, toolstack)
    loop = asyncio.get_running_loop()

    def tell(turns: int) -> None:
        if turns:
            loop.call_soon(tell, turns - 1)
        else:
            told.set()
            protectd.clocks.begin(protectd.registry.zones["z1"])

    def set_host(turns: int) -> float:
        if abs(agent.ahead_ns) <= 10 * MS and not changed.is_set():
            agent.ahead_ns = 3_600_000 * MS
            changed.set()
            tell(turns)
        return 0.0

    for turns in range(0, 60, 3):
        changed, told = asyncio.Event(), asyncio.Event()
        agent.ahead_ns = -5000 * MS
        agent.clock_lag = lambda turns=turns: set_host(turns)  # type: ignore[misc]
        protectd.clocks.begin(protectd.registry.zones["z1"])
        await told.wait()
        await _settled(protectd)
        assert abs(agent.ahead_ns) <= 10 * MS, turns


@pytest.mark.parametrize("code", [9, 12])
async def test_an_agent_without_the_call_is_asked_once(
    protectd: Assembly, toolstack: MemoryToolstack, code: int
) -> None:
    agent = await _launched(protectd, toolstack)
    agent.errors["sync_clock"] = pb.Error(code=code, message="no")
    await _corrected(protectd, agent, -5000 * MS)
    assert len(_asked(agent)) == 1 and agent.ahead_ns == -5000 * MS
    await _corrected(protectd, agent, -5000 * MS)
    assert not _asked(agent)


async def test_where_zones_have_the_hosts_clock_nobody_asks(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    async with running(tmp_path, toolstack) as protectd:
        hasten(protectd, clock=0.05)
        agent = await _launched(protectd, toolstack)
        await asyncio.wait_for(protectd.clocks.keep(), 60)
        agent.ahead_ns = -5000 * MS
        protectd.clocks.begin(protectd.registry.zones["z1"])
        await asyncio.sleep(0.2)
        assert not _asked(agent)


async def test_a_lost_channel_and_the_daemons_end_end_a_round(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    agent = await _launched(protectd, toolstack)
    agent.unanswered.add("sync_clock")
    protectd.clocks.begin(protectd.registry.zones["z1"])
    await asyncio.sleep(0.1)
    agent.unanswered.clear()
    agent.ahead_ns = -5000 * MS
    agent.cut()
    await until(lambda: abs(agent.ahead_ns) <= 10 * MS)  # the next connection asks
    agent.unanswered.add("sync_clock")
    protectd.clocks.begin(protectd.registry.zones["z1"])
    assert protectd.registry.zones["z1"].clock.busy
    protectd.stop()
    await _settled(protectd)


def test_the_bounds_keep_the_clock_within_50_ms() -> None:
    """What is not stepped is slewed within less than two turns of the default, at the kernel's rate."""
    slewed = float(Seconds(30.0)) * 500e-6 * 1e9
    assert clock.STEP_NS + slewed < 50 * MS and clock.STEP_NS <= 2 * slewed
