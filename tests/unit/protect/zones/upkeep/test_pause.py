"""A paused zone: no requests, no end for its silence, and a restart of protectd leaves the zone paused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemonkit.faults import Fault, Missing, Refused
from protect.assembly import Assembly
from protect.model.errors import ToolstackError
from protect.model.toolstack import DomainState
from protect.model.watch_events import ZoneSeen
from protect.zones import inspect
from protect.zones.upkeep import pause
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import hasten, running, zone_spec
from tests.support.waiting import until


@pytest.fixture
async def protectd(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        yield protectd


async def test_agent_of_a_paused_zone_is_asked_nothing_until_resumed(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    watch = protectd.registry.hub.watch()
    await anext(watch), await anext(watch)
    for _ in range(2):
        await pause.pause(protectd.registry, protectd.toolstack, "z1")
    assert toolstack.of_zone("z1").state is DomainState.PAUSED
    seen = await anext(watch)
    assert isinstance(seen, ZoneSeen) and seen.paused
    with pytest.raises(Refused, match=r"it is paused \(protect zone resume z1\)"):
        await inspect.facts(protectd.registry, "z1")
    for _ in range(2):
        await pause.resume(protectd.registry, protectd.toolstack, "z1")
    seen = await anext(watch)
    assert isinstance(seen, ZoneSeen) and not seen.paused
    assert (await inspect.facts(protectd.registry, "z1")).pid1


async def test_paused_zone_can_be_destroyed(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    await pause.pause(protectd.registry, protectd.toolstack, "z1")
    await protectd.removal.destroy("z1")
    assert toolstack.destroyed == ["z1"] and not protectd.registry.zones


async def test_a_stopped_zone_cannot_be_paused(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    with pytest.raises(Missing):
        await pause.pause(protectd.registry, protectd.toolstack, "nobody")
    toolstack.failing.add("pause")
    with pytest.raises(ToolstackError, match="failed on purpose"):
        await pause.pause(protectd.registry, protectd.toolstack, "z1")
    assert not protectd.registry.zones["z1"].paused
    toolstack.kill("z1")
    await until(lambda: not protectd.registry.zones["z1"].running)
    for verb in (pause.pause, pause.resume):
        with pytest.raises(Fault, match="it is dead"):
            await verb(protectd.registry, protectd.toolstack, "z1")


async def test_pause_by_somebody_else_is_noticed(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    periodic, runtime = protectd.periodic, protectd.registry.zones["z1"]
    toolstack.of_zone("z1").state = DomainState.PAUSED
    await periodic.look()
    assert runtime.paused
    toolstack.of_zone("z1").state = DomainState.RUNNING
    await periodic.look()
    assert not runtime.paused


async def test_state_listed_before_a_pause_does_not_count(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    """The domains were listed, and then the zone was paused."""
    listed = toolstack.list

    async def slowly() -> object:
        found = await listed()
        await pause.pause(protectd.registry, protectd.toolstack, "z1")
        return found

    toolstack.list = slowly  # type: ignore[method-assign, assignment]
    await protectd.periodic.look()
    assert protectd.registry.zones["z1"].paused


async def test_a_restart_leaves_the_zone_paused(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        await pause.pause(protectd.registry, protectd.toolstack, "z1")
    toolstack.of_zone("z1").agent.available.clear()
    async with running(tmp_path, toolstack) as protectd:
        hasten(protectd, silence=0.2)
        runtime = protectd.registry.zones["z1"]
        await until(lambda: runtime.paused)
        assert toolstack.of_zone("z1").state is DomainState.PAUSED and not runtime.connected
        toolstack.of_zone("z1").agent.available.set()
        await pause.resume(protectd.registry, protectd.toolstack, "z1")
        await until(lambda: runtime.connected)
        assert (await inspect.facts(protectd.registry, "z1")).pid1
