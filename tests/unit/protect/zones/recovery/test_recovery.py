"""Recovery of losses: unreported ends, marks, records, the boot of a zone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from daemonkit.faults import Exists, Invalid, Missing, Refused
from protect.assembly import Assembly
from protect.model.errors import ToolstackError
from protect.model.toolstack import DomainSpec, DomainState, ShutdownReason
from protect.model.zone import ZoneState
from protect.server import zone_requests
from protect.zones.recovery import mark
from protect.zones.recovery.load_records import RecordedZone
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
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    end_silently(toolstack)
    await protectd.periodic.look()
    await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
    assert protectd.registry.zones["z1"].zone.death_reason.startswith("Destroyed: ")
    await until(lambda: protectd.ledger.reserved_bytes == 0)


async def test_an_unreported_end_of_a_domain_is_noticed(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    domain = toolstack.of_zone("z1")
    domain.state, domain.reason = DomainState.SHUTDOWN, ShutdownReason.CRASH
    await protectd.periodic.look()
    await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
    assert protectd.registry.zones["z1"].zone.death_reason.startswith("Crashed: ")
    await until(lambda: not toolstack.domains)


async def test_nothing_is_concluded_from_a_silent_hypervisor(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    end_silently(toolstack)
    toolstack.failing.add("list")
    with pytest.raises(ToolstackError):
        await protectd.periodic.look()
    assert protectd.registry.zones["z1"].zone.state is ZoneState.RUNNING


async def test_a_running_zone_is_left_alone(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    before = protectd.registry.zones["z1"].zone
    for _ in range(3):
        await protectd.periodic.look()
    await protectd.lifetime.tasks.close(10.0)
    assert protectd.registry.zones["z1"].zone == before and protectd.registry.zones["z1"].connected
    assert toolstack.destroyed == []


async def test_a_lost_mark_is_given_again(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    before = toolstack.of_zone("z1").spec
    lose_marks(toolstack)
    await protectd.periodic.look()
    after = toolstack.of_zone("z1").spec
    assert after.name == before.name
    assert json.loads(after.mark)["id"] == json.loads(before.mark)["id"] == "z1"
    assert protectd.registry.zones["z1"].running


async def test_a_failed_destroy_is_tried_again(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    toolstack.failing.add("destroy")
    with pytest.raises(ToolstackError):
        await protectd.removal.destroy("z1")
    toolstack.failing.clear()
    await protectd.periodic.look()
    await until(lambda: not protectd.registry.zones and not toolstack.domains)


async def test_patrol_removes_the_domain_of_a_dead_zone(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    toolstack.failing.add("destroy")
    toolstack.kill("z1")
    await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
    await until(lambda: not protectd.registry.zones["z1"].lock.locked())
    toolstack.failing.clear()
    await protectd.periodic.look()
    await until(lambda: not toolstack.domains and protectd.ledger.reserved_bytes == 0)
    assert protectd.registry.zones["z1"].zone.state is ZoneState.DEAD


async def test_repeated_destroy_does_not_touch_a_new_zone_with_the_same_id(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    """A caller was faster, and has made the zone anew."""
    toolstack.failing.add("destroy")
    with pytest.raises(ToolstackError):
        await protectd.removal.destroy("z1")
    toolstack.failing.clear()
    old = protectd.registry.zones["z1"]
    async with old.lock:  # the patrol's second try waits
        again = asyncio.create_task(protectd.reconcile.reconcile(RecordedZone(old, None, None)))
        await asyncio.sleep(0)
        protectd.registry.drop_zone(old)
        await protectd.launcher.launch(zone_spec())
    await again
    assert protectd.registry.zones["z1"].running and protectd.ledger.reserved_bytes == 256 * MIB
    assert [zone.id for zone in protectd.registry.store.load().zones] == ["z1"]


# -- lost marks


async def test_a_zone_without_its_mark_is_destroyed_and_not_just_forgotten(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    lose_marks(toolstack)
    await protectd.removal.destroy("z1")
    assert not toolstack.domains and not protectd.registry.zones


async def test_a_restart_without_marks_adopts(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
    lose_marks(toolstack)
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: protectd.registry.zones["z1"].connected)
        assert toolstack.of_zone("z1").spec.mark
        await protectd.removal.destroy("z1")
        assert not toolstack.domains


async def test_a_failed_mark_costs_no_zone(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    lose_marks(toolstack)
    toolstack.failing.add("claim")
    await protectd.periodic.look()
    assert protectd.registry.zones["z1"].running
    with pytest.raises(ToolstackError):
        await protectd.removal.destroy("z1")
    assert toolstack.domains and protectd.registry.zones["z1"].zone.state is ZoneState.DESTROYING


def test_a_mark_has_the_facts_of_the_zone_and_none_of_the_host(protectd: Assembly) -> None:
    zone = protectd.registry.zones["z1"].zone
    spec = replace(zone.spec, netns="/run/netns/secret", sysctls={"net.a": "b"}, name="n" * 256)
    text = mark.of_zone(replace(zone, spec=spec))
    assert len(text) < 1024 and "/run/netns/secret" not in text
    assert json.loads(text)["hostname"] == spec.hostname


# -- lost records


async def lost(tmp_path: Path, toolstack: MemoryToolstack) -> UUID:
    """A domain without a record of its zone."""
    async with running(tmp_path / "before", toolstack) as protectd:
        return (await protectd.launcher.launch(zone_spec())).uuid


async def test_an_orphan_is_listed_and_adopted(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    foreign = DomainSpec(uuid=uuid4(), name="theirs", memory_bytes=1)
    await toolstack.create(foreign)
    async with running(tmp_path / "after", toolstack) as protectd:
        listed = {one.domain.uuid: one.zone for one in await protectd.orphans.listed()}
        assert listed.keys() == {uuid, foreign.uuid} and listed[foreign.uuid] is None
        made_for = listed[uuid]
        assert made_for is not None and (made_for.id, made_for.spec.name) == ("z1", "web")
        runtime = await protectd.reconcile.adopt_orphan(uuid)
        await until(runtime.heard.is_set)
        assert protectd.ledger.reserved_bytes == 256 * MIB
        assert runtime.zone.state is ZoneState.RUNNING and runtime.zone.agent_version == "sim"
        assert [one.domain.uuid for one in await protectd.orphans.listed()] == [foreign.uuid]
        with pytest.raises(Refused, match="domain of zone z1"):
            await protectd.orphans.adopt(uuid)
    async with running(tmp_path / "after", toolstack) as protectd:
        await until(lambda: protectd.registry.zones["z1"].connected)
        await protectd.removal.destroy("z1")
        assert [domain.spec.name for domain in toolstack.domains.values()] == ["theirs"]


async def test_an_adopted_zone_keeps_its_first_agent(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    async with running(tmp_path / "after", toolstack) as protectd:
        runtime = await protectd.reconcile.adopt_orphan(uuid)
        await until(runtime.heard.is_set)
        toolstack.of_zone("z1").agent.reboot()
        await until(lambda: runtime.zone.state is ZoneState.DEAD)


async def test_an_orphan_is_removed(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    async with running(tmp_path / "after", toolstack) as protectd:
        await protectd.orphans.remove(uuid)
        assert not toolstack.domains and not protectd.registry.zones
        with pytest.raises(Missing):
            await protectd.orphans.remove(uuid)


async def test_domain_without_a_mark_is_neither_adopted_nor_removed(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    foreign = DomainSpec(uuid=uuid4(), name="theirs", memory_bytes=1)
    await toolstack.create(foreign)
    async with running(tmp_path, toolstack) as protectd:
        for verb in (protectd.orphans.adopt, protectd.orphans.remove):
            with pytest.raises(Refused, match="no mark"):
                await verb(foreign.uuid)
    assert len(toolstack.domains) == 1


async def test_an_id_of_another_zone_is_not_taken(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    async with running(tmp_path / "after", toolstack) as protectd:
        again = await protectd.launcher.launch(zone_spec())
        with pytest.raises(Exists):
            await protectd.orphans.adopt(uuid)
        await protectd.ports.volumes.open("z1")
        await protectd.orphans.remove(uuid)
        assert protectd.ports.volumes.zones() == ["z1"], "those of the zone that has the id now"
        assert [domain.spec.uuid for domain in toolstack.domains.values()] == [again.uuid]


async def test_ended_orphan_can_only_be_removed(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    uuid = await lost(tmp_path, toolstack)
    toolstack.of_zone("z1").state = DomainState.SHUTDOWN
    async with running(tmp_path / "after", toolstack) as protectd:
        with pytest.raises(Refused, match="has ended"):
            await protectd.orphans.adopt(uuid)
        await protectd.orphans.remove(uuid)


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
    async with running(tmp_path / "after", toolstack) as protectd:
        for text in wrong:
            domain.spec = replace(domain.spec, mark=text)
            with pytest.raises(Refused, match="no mark"):
                await protectd.orphans.adopt(uuid)
            assert not protectd.registry.zones


async def test_files_of_an_orphan_stay_for_its_adoption(tmp_path: Path, toolstack: MemoryToolstack) -> None:
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
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        runtime = protectd.registry.zones["z1"]
        assert runtime.zone.host_boot == protectd.registry.host_boot != ""
        protectd.registry.put_zone(runtime, replace(runtime.zone, host_boot="another"))
    toolstack.domains.clear()
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
        assert protectd.registry.zones["z1"].zone.death_reason == "Vanished: the host was rebooted"


async def test_a_lost_domain_of_the_same_boot_is_dead(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
    toolstack.domains.clear()
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
        assert "rebooted" not in protectd.registry.zones["z1"].zone.death_reason


# -- the host's shutdown


async def test_a_silent_zone_is_ended_by_force(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    toolstack.of_zone("z1").agent.unanswered.add("power_off")
    assert await protectd.shutdown.shutdown(1.0) == []
    zone = protectd.registry.zones["z1"].zone
    assert (zone.state, zone.death_reason) == (ZoneState.DEAD, "HostShutDown: the host was shut down")
    assert not toolstack.domains and protectd.ledger.reserved_bytes == 0
    with pytest.raises(Refused, match="shutting down"):
        await protectd.launcher.launch(zone_spec("z2"))


async def test_an_unendable_zone_is_named(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    toolstack.failing.add("destroy")
    toolstack.of_zone("z1").agent.unanswered.add("power_off")
    assert await protectd.shutdown.shutdown(1.0) == ["z1"]
    toolstack.failing.clear()


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.5, 4000.0])
def test_a_deadline_has_bounds(seconds: float) -> None:
    with pytest.raises(Invalid, match="deadline"):
        zone_requests.shutdown_seconds(int(seconds * 1e9))
