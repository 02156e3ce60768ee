"""A zone whose agent cannot be reached: reported at once, and ended if the silence lasts, unless paused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protect.assembly import Assembly
from protect.model.toolstack import DomainState
from protect.model.watch_events import ZoneSeen
from protect.model.zone import ZoneState
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import hasten, running, zone_spec
from tests.support.waiting import until


@pytest.fixture
async def protectd(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    async with running(tmp_path, toolstack) as protectd:
        yield protectd


def _cut(toolstack: MemoryToolstack) -> None:
    agent = toolstack.of_zone("z1").agent
    agent.available.clear()
    agent.cut()


async def test_a_lost_channel_is_told_and_then_ends_the_zone(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    hasten(protectd, silence=0.3)
    await protectd.launcher.launch(zone_spec())
    watch = protectd.registry.hub.watch()
    seen = [await anext(watch) for _ in range(2)]
    assert isinstance(seen[0], ZoneSeen) and seen[0].connected
    _cut(toolstack)
    lost = await anext(watch)
    assert isinstance(lost, ZoneSeen) and not lost.connected and lost.zone.state is ZoneState.RUNNING
    dead = await anext(watch)
    assert isinstance(dead, ZoneSeen) and dead.zone.death_kind == "ChannelLost"
    assert dead.zone.death_reason.endswith("could not be reached for 0.3 s, although its domain runs")
    await until(lambda: toolstack.destroyed == ["z1"])


async def test_zone_with_a_returning_agent_lives_on(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    hasten(protectd, silence=1.0)
    await protectd.launcher.launch(zone_spec())
    _cut(toolstack)
    await until(lambda: not protectd.registry.zones["z1"].connected)
    toolstack.of_zone("z1").agent.available.set()
    await until(lambda: protectd.registry.zones["z1"].heard.is_set())
    await asyncio.sleep(1.5)
    assert protectd.registry.zones["z1"].zone.state is ZoneState.RUNNING


@pytest.mark.parametrize("limit", [0.2, 0.0])
async def test_paused_zones_and_zones_without_a_limit_live_on(
    protectd: Assembly, toolstack: MemoryToolstack, limit: float
) -> None:
    hasten(protectd, silence=limit)
    await protectd.launcher.launch(zone_spec())
    if limit:
        toolstack.of_zone("z1").state = DomainState.PAUSED
    _cut(toolstack)
    await asyncio.sleep(1.0)
    assert protectd.registry.zones["z1"].zone.state is ZoneState.RUNNING
    toolstack.of_zone("z1").state = DomainState.RUNNING
    if limit:
        await until(lambda: protectd.registry.zones["z1"].zone.death_kind == "ChannelLost")


async def test_the_wait_ends_with_the_daemon(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    await protectd.launcher.launch(zone_spec())
    _cut(toolstack)
    await until(lambda: not protectd.registry.zones["z1"].connected)
    waiting = asyncio.create_task(protectd.silence.wait(protectd.registry.zones["z1"]))
    await asyncio.sleep(0)
    protectd.stop()
    await asyncio.wait_for(waiting, 60)
    assert protectd.registry.zones["z1"].zone.state is ZoneState.RUNNING
