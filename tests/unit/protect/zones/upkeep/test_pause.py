"""A paused zone: no requests, no end for its silence, and a restart of protectd leaves the zone paused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemonkit.faults import Fault, Missing, Refused
from protect.model.errors import ToolstackError
from protect.model.events import ZoneSeen
from protect.model.toolstack import DomainState
from protect.state.manager import ZoneManager
from protect.zones import destroy, inspect, launch
from protect.zones.recovery.periodic import PeriodicReconcile
from protect.zones.upkeep import pause
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import hasten, running, zone_spec
from tests.support.waiting import until


@pytest.fixture
async def manager(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[ZoneManager]:
    async with running(tmp_path, toolstack) as manager:
        await launch.launch(manager, zone_spec())
        yield manager


async def test_agent_of_a_paused_zone_is_asked_nothing_until_resumed(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    watch = manager.hub.watch()
    await anext(watch), await anext(watch)
    for _ in range(2):
        await pause.pause(manager, "z1")
    assert toolstack.of_zone("z1").state is DomainState.PAUSED
    seen = await anext(watch)
    assert isinstance(seen, ZoneSeen) and seen.paused
    with pytest.raises(Refused, match=r"it is paused \(protect zone resume z1\)"):
        await inspect.facts(manager, "z1")
    for _ in range(2):
        await pause.resume(manager, "z1")
    seen = await anext(watch)
    assert isinstance(seen, ZoneSeen) and not seen.paused
    assert (await inspect.facts(manager, "z1")).pid1


async def test_paused_zone_can_be_destroyed(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    await pause.pause(manager, "z1")
    await destroy.destroy(manager, "z1")
    assert toolstack.destroyed == ["z1"] and not manager.zones


async def test_a_stopped_zone_cannot_be_paused(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    with pytest.raises(Missing):
        await pause.pause(manager, "nobody")
    toolstack.failing.add("pause")
    with pytest.raises(ToolstackError, match="failed on purpose"):
        await pause.pause(manager, "z1")
    assert not manager.zones["z1"].paused
    toolstack.kill("z1")
    await until(lambda: not manager.zones["z1"].running)
    for verb in (pause.pause, pause.resume):
        with pytest.raises(Fault, match="it is dead"):
            await verb(manager, "z1")


async def test_pause_by_somebody_else_is_noticed(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    periodic, runtime = PeriodicReconcile(manager), manager.zones["z1"]
    toolstack.of_zone("z1").state = DomainState.PAUSED
    await periodic.look()
    assert runtime.paused
    toolstack.of_zone("z1").state = DomainState.RUNNING
    await periodic.look()
    assert not runtime.paused


async def test_state_listed_before_a_pause_does_not_count(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    """The domains were listed, and then the zone was paused."""
    listed = toolstack.list

    async def slowly() -> object:
        found = await listed()
        await pause.pause(manager, "z1")
        return found

    toolstack.list = slowly  # type: ignore[method-assign, assignment]
    await PeriodicReconcile(manager).look()
    assert manager.zones["z1"].paused


async def test_a_restart_leaves_the_zone_paused(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as manager:
        await launch.launch(manager, zone_spec())
        await pause.pause(manager, "z1")
    toolstack.of_zone("z1").agent.available.clear()
    async with running(tmp_path, toolstack) as manager:
        hasten(manager, silence=0.2)
        runtime = manager.zones["z1"]
        await until(lambda: runtime.paused)
        assert toolstack.of_zone("z1").state is DomainState.PAUSED and not runtime.connected
        toolstack.of_zone("z1").agent.available.set()
        await pause.resume(manager, "z1")
        await until(lambda: runtime.connected)
        assert (await inspect.facts(manager, "z1")).pid1
