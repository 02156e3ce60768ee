"""Recovery of losses: unreported ends, marks, records, the boot of a zone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from daemonkit.faults import Exists, Invalid, Missing, Refused
from protect.model.errors import ToolstackError
from protect.model.toolstack import DomainSpec, DomainState, ShutdownReason
from protect.model.zone import ZoneState
from protect.server import zone_requests
from protect.state.manager import ZoneManager
from protect.zones import destroy, launch, reconcile
from protect.zones.recovery import mark, shutdown, strangers
from protect.zones.recovery.periodic import PeriodicReconcile
from tests.support.protect.memory_toolstack import MemoryDomain, MemoryToolstack
from tests.support.protect.protect_node import MIB, running, zone_spec
from tests.support.waiting import until


def end_silently(toolstack: MemoryToolstack) -> None:
    """The domain vanishes without an event."""
    del toolstack.domains[toolstack.of_zone("z1").id]


def lose_marks(toolstack: MemoryToolstack) -> None:
    """As when xenstored is restarted: domains go on, without marks and names."""
    for domain in toolstack.domains.values():
        domain.spec = replace(domain.spec, name="", mark="")


# -- the patrol


async def test_an_unreported_loss_of_a_domain_is_noticed(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    end_silently(toolstack)
    await PeriodicReconcile(manager).look()
    await until(lambda: manager.zones["z1"].zone.state is ZoneState.DEAD)
    assert manager.zones["z1"].zone.death_reason.startswith("Destroyed: ")
    await until(lambda: manager.ledger.reserved_bytes == 0)


async def test_an_unreported_end_of_a_domain_is_noticed(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    domain = toolstack.of_zone("z1")
    domain.state, domain.reason = DomainState.SHUTDOWN, ShutdownReason.CRASH
    await PeriodicReconcile(manager).look()
    await until(lambda: manager.zones["z1"].zone.state is ZoneState.DEAD)
    assert manager.zones["z1"].zone.death_reason.startswith("Crashed: ")
    await until(lambda: not toolstack.domains)


async def test_nothing_is_concluded_from_a_silent_hypervisor(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    end_silently(toolstack)
    toolstack.failing.add("list")
    with pytest.raises(ToolstackError):
        await PeriodicReconcile(manager).look()
    assert manager.zones["z1"].zone.state is ZoneState.RUNNING


async def test_a_running_zone_is_left_alone(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    before = manager.zones["z1"].zone
    for _ in range(3):
        await PeriodicReconcile(manager).look()
    await manager.tasks.close(10.0)
    assert manager.zones["z1"].zone == before and manager.zones["z1"].connected
    assert toolstack.destroyed == []


async def test_a_lost_mark_is_given_again(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    before = toolstack.of_zone("z1").spec
    lose_marks(toolstack)
    await PeriodicReconcile(manager).look()
    after = toolstack.of_zone("z1").spec
    assert after.name == before.name
    assert json.loads(after.mark)["id"] == json.loads(before.mark)["id"] == "z1"
    assert manager.zones["z1"].running


async def test_a_failed_destroy_is_tried_again(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    toolstack.failing.add("destroy")
    with pytest.raises(ToolstackError):
        await destroy.destroy(manager, "z1")
    toolstack.failing.clear()
    await PeriodicReconcile(manager).look()
    await until(lambda: not manager.zones and not toolstack.domains)


async def test_patrol_removes_the_domain_of_a_dead_zone(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    toolstack.failing.add("destroy")
    toolstack.kill("z1")
    await until(lambda: manager.zones["z1"].zone.state is ZoneState.DEAD)
    await until(lambda: not manager.zones["z1"].lock.locked())
    toolstack.failing.clear()
    await PeriodicReconcile(manager).look()
    await until(lambda: not toolstack.domains and manager.ledger.reserved_bytes == 0)
    assert manager.zones["z1"].zone.state is ZoneState.DEAD


async def test_repeated_destroy_does_not_touch_a_new_zone_with_the_same_id(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    """A caller was faster, and has made the zone anew."""
    toolstack.failing.add("destroy")
    with pytest.raises(ToolstackError):
        await destroy.destroy(manager, "z1")
    toolstack.failing.clear()
    old = manager.zones["z1"]
    async with old.lock:  # the patrol's second try waits
        again = asyncio.create_task(reconcile.reconcile(manager, reconcile.RecordedZone(old, None, None)))
        await asyncio.sleep(0)
        manager.drop_zone(old)
        await launch.launch(manager, zone_spec())
    await again
    assert manager.zones["z1"].running and manager.ledger.reserved_bytes == 256 * MIB
    assert [zone.id for zone in manager.store.load().zones] == ["z1"]


# -- lost marks


async def test_a_zone_without_its_mark_is_destroyed_and_not_just_forgotten(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    lose_marks(toolstack)
    await destroy.destroy(manager, "z1")
    assert not toolstack.domains and not manager.zones


async def test_a_restart_without_marks_adopts(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as manager:
        await launch.launch(manager, zone_spec())
    lose_marks(toolstack)
    async with running(tmp_path, toolstack) as manager:
        await until(lambda: manager.zones["z1"].connected)
        assert toolstack.of_zone("z1").spec.mark
        await destroy.destroy(manager, "z1")
        assert not toolstack.domains


async def test_a_failed_mark_costs_no_zone(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    lose_marks(toolstack)
    toolstack.failing.add("claim")
    await PeriodicReconcile(manager).look()
    assert manager.zones["z1"].running
    with pytest.raises(ToolstackError):
        await destroy.destroy(manager, "z1")
    assert toolstack.domains and manager.zones["z1"].zone.state is ZoneState.DESTROYING


def test_a_mark_has_the_facts_of_the_zone_and_none_of_the_host(manager: ZoneManager) -> None:
    zone = manager.zones["z1"].zone
    spec = replace(zone.spec, netns="/run/netns/secret", sysctls={"net.a": "b"}, name="n" * 256)
    text = mark.of_zone(replace(zone, spec=spec))
    assert len(text) < 1024 and "/run/netns/secret" not in text
    assert json.loads(text)["hostname"] == spec.hostname


# -- lost records


async def lost(tmp_path: Path, toolstack: MemoryToolstack) -> UUID:
    """A domain without a record of its zone."""
    async with running(tmp_path / "before", toolstack) as manager:
        return (await launch.launch(manager, zone_spec())).uuid


async def test_a_stranger_is_listed_and_adopted(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    foreign = DomainSpec(uuid=uuid4(), name="theirs", memory_bytes=1)
    await toolstack.create(foreign)
    async with running(tmp_path / "after", toolstack) as manager:
        listed = {one.domain.uuid: one.zone for one in await strangers.strangers(manager)}
        assert listed.keys() == {uuid, foreign.uuid} and listed[foreign.uuid] is None
        made_for = listed[uuid]
        assert made_for is not None and (made_for.id, made_for.spec.name) == ("z1", "web")
        runtime = await reconcile.adopt_stranger(manager, uuid)
        await until(runtime.heard.is_set)
        assert manager.ledger.reserved_bytes == 256 * MIB
        assert runtime.zone.state is ZoneState.RUNNING and runtime.zone.agent_version == "sim"
        assert [one.domain.uuid for one in await strangers.strangers(manager)] == [foreign.uuid]
        with pytest.raises(Refused, match="domain of zone z1"):
            await strangers.adopt(manager, uuid)
    async with running(tmp_path / "after", toolstack) as manager:
        await until(lambda: manager.zones["z1"].connected)
        await destroy.destroy(manager, "z1")
        assert [domain.spec.name for domain in toolstack.domains.values()] == ["theirs"]


async def test_an_adopted_zone_keeps_its_first_agent(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    async with running(tmp_path / "after", toolstack) as manager:
        runtime = await reconcile.adopt_stranger(manager, uuid)
        await until(runtime.heard.is_set)
        toolstack.of_zone("z1").agent.reboot()
        await until(lambda: runtime.zone.state is ZoneState.DEAD)


async def test_a_stranger_is_removed(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    async with running(tmp_path / "after", toolstack) as manager:
        await strangers.remove(manager, uuid)
        assert not toolstack.domains and not manager.zones
        with pytest.raises(Missing):
            await strangers.remove(manager, uuid)


async def test_domain_without_a_mark_is_neither_adopted_nor_removed(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    foreign = DomainSpec(uuid=uuid4(), name="theirs", memory_bytes=1)
    await toolstack.create(foreign)
    async with running(tmp_path, toolstack) as manager:
        for verb in (strangers.adopt, strangers.remove):
            with pytest.raises(Refused, match="no mark"):
                await verb(manager, foreign.uuid)
    assert len(toolstack.domains) == 1


async def test_an_id_of_another_zone_is_not_taken(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    async with running(tmp_path / "after", toolstack) as manager:
        again = await launch.launch(manager, zone_spec())
        with pytest.raises(Exists):
            await strangers.adopt(manager, uuid)
        await manager.volumes.open("z1")
        await strangers.remove(manager, uuid)
        assert manager.volumes.zones() == ["z1"], "those of the zone that has the id now"
        assert [domain.spec.uuid for domain in toolstack.domains.values()] == [again.uuid]


async def test_ended_stranger_can_only_be_removed(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    toolstack.of_zone("z1").state = DomainState.SHUTDOWN
    async with running(tmp_path / "after", toolstack) as manager:
        with pytest.raises(Refused, match="has ended"):
            await strangers.adopt(manager, uuid)
        await strangers.remove(manager, uuid)


def _bent(domain: MemoryDomain, **changes: object) -> str:
    return json.dumps(json.loads(domain.spec.mark) | changes)


async def test_foreign_marks_are_not_believed(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    domain = toolstack.of_zone("z1")
    wrong = [
        "nonsense",
        "[]",
        "{}",
        '{"id": "z1"}',
        "1" * 5000,
        _bent(domain, id="../../etc"),
        _bent(domain, uuid=str(uuid4())),
        _bent(domain, memory_bytes="much"),
    ]
    async with running(tmp_path / "after", toolstack) as manager:
        for text in wrong:
            domain.spec = replace(domain.spec, mark=text)
            with pytest.raises(Refused, match="no mark"):
                await strangers.adopt(manager, uuid)
            assert not manager.zones


async def test_files_of_a_stranger_stay_for_its_adoption(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    await lost(tmp_path, toolstack)
    journals = tmp_path / "after/run/zones"
    for name in ("z1", "forgotten"):
        (journals / name).mkdir(parents=True)
    async with running(tmp_path / "after", toolstack):
        assert [entry.name for entry in journals.iterdir()] == ["z1"]


def test_a_uuid_is_checked() -> None:
    with pytest.raises(Invalid, match="not a uuid"):
        zone_requests.uuid("adopt zone", "z1\x1b")


# -- the boot


async def test_a_reboot_is_told_from_a_restart(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as manager:
        await launch.launch(manager, zone_spec())
        runtime = manager.zones["z1"]
        assert runtime.zone.host_boot == manager.host_boot != ""
        manager.put_zone(runtime, replace(runtime.zone, host_boot="another"))
    toolstack.domains.clear()
    async with running(tmp_path, toolstack) as manager:
        await until(lambda: manager.zones["z1"].zone.state is ZoneState.DEAD)
        assert manager.zones["z1"].zone.death_reason == "Vanished: the host was rebooted"


async def test_a_lost_domain_of_the_same_boot_is_dead(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as manager:
        await launch.launch(manager, zone_spec())
    toolstack.domains.clear()
    async with running(tmp_path, toolstack) as manager:
        await until(lambda: manager.zones["z1"].zone.state is ZoneState.DEAD)
        assert "rebooted" not in manager.zones["z1"].zone.death_reason


# -- the host's shutdown


async def test_a_silent_zone_is_ended_by_force(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    toolstack.of_zone("z1").agent.unanswered.add("power_off")
    assert await shutdown.shutdown(manager, 1.0) == []
    zone = manager.zones["z1"].zone
    assert (zone.state, zone.death_reason) == (ZoneState.DEAD, "HostShutDown: the host was shut down")
    assert not toolstack.domains and manager.ledger.reserved_bytes == 0
    with pytest.raises(Refused, match="shutting down"):
        await launch.launch(manager, zone_spec("z2"))


async def test_an_unendable_zone_is_named(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    toolstack.failing.add("destroy")
    toolstack.of_zone("z1").agent.unanswered.add("power_off")
    assert await shutdown.shutdown(manager, 1.0) == ["z1"]
    toolstack.failing.clear()


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.5, 4000.0])
def test_a_deadline_has_bounds(seconds: float) -> None:
    with pytest.raises(Invalid, match="deadline"):
        zone_requests.shutdown_seconds(int(seconds * 1e9))
