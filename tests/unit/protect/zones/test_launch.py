"""Zone logic: launch, destroy, death, restart, over agents in memory."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import protect
from daemonkit.faults import Exhausted, Fault, Missing, Refused, TooLate
from protect.assembly import Assembly
from protect.model import watch_events as told
from protect.model.errors import ToolstackError
from protect.model.toolstack import DomainId, DomainSpec, DomainState, ShutdownReason
from protect.model.workload import Reason, WorkloadState
from protect.model.zone import ZoneState
from protect.state import hub
from protect.state.store import Intent
from protect.workloads import start
from protect.zones import connect, inspect, launch
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import MIB, hasten, running, served, workload_spec, zone_spec
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2
from xenpod_proto.protect.v1 import protect_pb2

PROTECT = str(Path(protect.__file__).parent)


@pytest.fixture
async def protectd(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    async with running(tmp_path, toolstack) as protectd:
        yield protectd


def nothing_left(protectd: Assembly, toolstack: MemoryToolstack) -> bool:
    registry, saved = protectd.registry, protectd.registry.store.load()
    return not (
        toolstack.domains or registry.zones or registry.workloads or protectd.ledger.reserved_bytes
        or saved.zones or saved.zone_intents or saved.workloads or saved.workload_intents
    )  # fmt: skip


async def test_a_zone_is_launched_and_destroyed(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    zone = await protectd.launcher.launch(zone_spec())
    assert zone.state is ZoneState.RUNNING
    assert protectd.registry.store.load().zones == (zone,)
    assert protectd.registry.store.load().zone_intents == {}
    domain = toolstack.of_zone("z1")
    assert domain.spec.uuid == zone.uuid and domain.state is DomainState.RUNNING
    configured = domain.agent.requests[0].configure_zone
    assert configured.hostname == "host"
    assert protectd.registry.zones["z1"].connected
    await protectd.removal.destroy("z1")
    await protectd.removal.destroy("z1")
    assert nothing_left(protectd, toolstack)
    assert toolstack.forgotten == [domain.spec.name]
    assert domain.agent.faults == []


async def test_few_steps_lead_from_the_servicer_to_the_toolstack(
    protectd: Assembly, toolstack: MemoryToolstack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions that a reader of a pod's start passes on the way to the hypervisor."""
    seen: list[str] = []
    plain = toolstack.create

    async def create(spec: DomainSpec) -> DomainId:
        product = [frame for frame in traceback.extract_stack() if frame.filename.startswith(PROTECT)]
        seen.extend(frame.name for frame in product)
        return await plain(spec)

    monkeypatch.setattr(toolstack, "create", create)
    request = protect_pb2.CreateZoneRequest(id="z1", name="web")
    await protectd.lifetime.tasks.run(protectd.zones_servicer.CreateZone(request, None), "call")  # type: ignore[arg-type]
    assert seen == ["CreateZone", "launch"]


@pytest.mark.parametrize("step", ["create", "unpause"])
async def test_a_failed_launch_leaves_nothing(
    protectd: Assembly, toolstack: MemoryToolstack, step: str
) -> None:
    toolstack.failing.add(step)
    with pytest.raises(ToolstackError, match="failed on purpose"):
        await protectd.launcher.launch(zone_spec())
    assert nothing_left(protectd, toolstack)


async def test_a_silent_zone_is_given_up_with_its_console(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    toolstack.agent_ready = False
    hasten(protectd, boot=0.5)
    entered, go = toolstack.gate("unpause")
    launching = asyncio.create_task(protectd.launcher.launch(zone_spec()))
    await entered.wait()
    toolstack.of_zone("z1").console = b"Kernel panic - not syncing: \x1b[1mno init\n"
    go.set()
    with pytest.raises(TooLate, match="no init"):
        await launching
    assert nothing_left(protectd, toolstack)


async def test_a_failed_configuration_of_the_agent_undoes_the_launch(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    entered, go = toolstack.gate("unpause")
    launching = asyncio.create_task(protectd.launcher.launch(zone_spec()))
    await entered.wait()
    toolstack.of_zone("z1").agent.errors["configure_zone"] = channel_pb2.Error(
        code=3, message="no such sysctl"
    )
    go.set()
    with pytest.raises(Fault, match="no such sysctl"):
        await launching
    assert nothing_left(protectd, toolstack)


@pytest.mark.parametrize("step", ["create", "unpause"])
async def test_a_destroy_during_a_launch_leaves_nothing(
    protectd: Assembly, toolstack: MemoryToolstack, step: str
) -> None:
    entered, go = toolstack.gate(step)
    launching = asyncio.create_task(protectd.launcher.launch(zone_spec()))
    await entered.wait()
    destroying = asyncio.create_task(protectd.removal.destroy("z1"))
    await asyncio.sleep(0)
    go.set()
    await destroying
    with pytest.raises(Refused, match="being destroyed"):
        await launching
    assert nothing_left(protectd, toolstack)


async def test_a_caller_who_goes_away_leaves_nothing(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    entered, go = toolstack.gate("create")
    launching = served(protectd, protectd.launcher.launch(zone_spec()))
    await entered.wait()
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    go.set()
    await until(lambda: nothing_left(protectd, toolstack))
    assert toolstack.destroyed == ["z1"]


async def test_a_death_during_the_launch_undoes_the_launch(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    toolstack.agent_ready = False
    hasten(protectd, boot=600.0)
    launching = asyncio.create_task(protectd.launcher.launch(zone_spec()))
    await until(lambda: toolstack.domains and toolstack.of_zone("z1").state is DomainState.RUNNING)
    toolstack.of_zone("z1").console = b"boom\n"
    toolstack.kill("z1")
    with pytest.raises(Fault, match="boom"):
        async with asyncio.timeout(60):
            await launching
    assert nothing_left(protectd, toolstack)


async def test_the_death_of_a_running_zone_has_kind_and_console(
    protectd: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    await protectd.launcher.launch(zone_spec())
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    lines = [*(b"line %d" % n for n in range(1000)), b"Kernel panic - not syncing: Fatal exception"]
    toolstack.of_zone("z1").console = b"\n".join(lines)
    toolstack.kill("z1")
    await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
    zone = protectd.registry.zones["z1"].zone
    assert (zone.death_kind, zone.console.count("\n")) == ("KernelPanic", 49)
    assert zone.death_reason == "KernelPanic: its kernel panicked: Fatal exception"
    assert zone.console.startswith("line 951") and zone.console.endswith("not syncing: Fatal exception")
    assert zone.died_at_ns >= zone.created_at_ns
    workload = protectd.registry.workloads["w1"].workload
    assert (workload.state, workload.reason, workload.exit_code) == (
        WorkloadState.EXITED,
        Reason.ZONE_KERNEL_PANIC,
        137,
    )
    assert workload.message.startswith("the zone ended: its kernel panicked: Fatal exception\nits console")
    assert "\nline 999\n" in workload.message
    await until(lambda: not toolstack.domains and protectd.ledger.reserved_bytes == 0)
    with pytest.raises(Refused, match="KernelPanic"):
        await protectd.creation.create(workload_spec(tmp_path, "w2"))
    await protectd.removal.destroy("z1")
    assert nothing_left(protectd, toolstack)


async def test_a_failed_destroy_can_be_repeated(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    await protectd.launcher.launch(zone_spec())
    toolstack.failing.add("destroy")
    with pytest.raises(ToolstackError):
        await protectd.removal.destroy("z1")
    assert protectd.registry.zones["z1"].zone.state is ZoneState.DESTROYING
    toolstack.failing.clear()
    await protectd.removal.destroy("z1")
    assert nothing_left(protectd, toolstack)


async def test_a_zone_against_the_rules_is_ended(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    await protectd.launcher.launch(zone_spec())
    toolstack.of_zone("z1").agent.raw(b"\xff" * 64)
    await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
    assert "broke the channel's rules" in protectd.registry.zones["z1"].zone.death_reason
    await until(lambda: toolstack.destroyed == ["z1"])


async def test_another_agent_in_the_zone_ends_the_zone(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    await protectd.launcher.launch(zone_spec())
    toolstack.of_zone("z1").agent.reboot()
    await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
    assert "another agent" in protectd.registry.zones["z1"].zone.death_reason


async def _connect(protectd: Assembly, zone_id: str) -> None:
    parts = (protectd.registry, protectd.toolstack, protectd.ports.splice)
    await connect.connect(*parts, zone_id, "/run/netns/x", "eth0", spoof_check=True)


async def test_a_network_is_spliced_and_configured(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    await protectd.launcher.launch(zone_spec(interfaces=1))
    await _connect(protectd, "z1")
    assert protectd.ports.splice.spliced == [("vif1.0", "/run/netns/x", "eth0")]  # type: ignore[attr-defined]
    asked = toolstack.of_zone("z1").agent.requests[-1].configure_network
    assert (asked.name, asked.mtu, list(asked.addresses)) == ("eth0", 1500, ["10.0.0.2/24"])
    assert [(route.destination, route.gateway) for route in asked.routes] == [("0.0.0.0/0", "10.0.0.1")]
    assert protectd.registry.store.load().zone_intents == {}


async def test_a_failed_connect_is_not_finished_later(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    await protectd.launcher.launch(zone_spec(interfaces=1))
    error = channel_pb2.Error(code=5, message="network: eth0: no such interface")
    toolstack.of_zone("z1").agent.errors["configure_network"] = error
    with pytest.raises(Missing, match="no such interface"):
        await _connect(protectd, "z1")
    assert protectd.registry.store.load().zone_intents == {}


async def test_a_connect_without_an_interface_is_refused(protectd: Assembly) -> None:
    await protectd.launcher.launch(zone_spec())
    with pytest.raises(Refused, match="without an interface"):
        await _connect(protectd, "z1")
    with pytest.raises(Missing):
        await _connect(protectd, "z2")


async def test_facts_come_from_the_agent(protectd: Assembly) -> None:
    await protectd.launcher.launch(zone_spec())
    assert (await inspect.facts(protectd.registry, "z1")).pid1 == "init"


# -- restarts


async def test_a_restart_adopts_running_zones(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: protectd.registry.zones["z1"].connected)
        assert protectd.registry.zones["z1"].zone.state is ZoneState.RUNNING
        assert protectd.ledger.reserved_bytes == 256 * MIB
        assert (await inspect.facts(protectd.registry, "z1")).pid1 == "init"


async def test_a_restart_without_the_domain_ends_the_zone(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path))
    toolstack.domains.clear()
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
        assert protectd.registry.workloads["w1"].workload.reason is Reason.ZONE_VANISHED
        await until(lambda: protectd.ledger.reserved_bytes == 0)
        await protectd.removal.destroy("z1")
        assert nothing_left(protectd, toolstack)


@pytest.mark.parametrize("step", ["create", "unpause"])
async def test_a_restart_undoes_a_half_launch(tmp_path: Path, toolstack: MemoryToolstack, step: str) -> None:
    """The first daemon never reaches its undo, like a killed daemon."""
    async with running(tmp_path, toolstack) as first:
        runtime = await first.admission.admit(zone_spec())
        if step == "unpause":
            await toolstack.create(launch.domain_spec(runtime.zone, tmp_path))
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: nothing_left(protectd, toolstack))
        await protectd.launcher.launch(zone_spec())


async def test_a_restart_finishes_a_connect(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    intent = Intent(
        connect.OPERATION, data={"netns": "/run/netns/x", "interface": "eth0", "spoof_check": "yes"}
    )
    async with running(tmp_path, toolstack) as first:
        await first.launcher.launch(zone_spec(interfaces=1))
        runtime = first.registry.zones["z1"]
        first.registry.put_zone(runtime, runtime.zone, intent)
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: not protectd.registry.store.load().zone_intents)
        assert protectd.ports.splice.spliced == [("vif1.0", "/run/netns/x", "eth0")]  # type: ignore[attr-defined]
        assert toolstack.of_zone("z1").agent.requests[-1].configure_network.name == "eth0"


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("web-1_a", "web-1_a"),
        ("", "z1"),
        ("a b/c.d:e", "a-b-c-d-e"),
        ("\u00fcber\u0663", "-ber-"),
        ("x" * 40, "x" * 32),
    ],
)
async def test_domain_name_is_readable_and_unique(
    tmp_path: Path, toolstack: MemoryToolstack, name: str, readable: str
) -> None:
    """Readable, safe in paths and command lines, and unique."""
    async with running(tmp_path, toolstack) as protectd:
        zone = await protectd.launcher.launch(replace(zone_spec(), name=name))
        (domain,) = await toolstack.list()
        assert domain.name == f"{readable}.{zone.uuid.hex[:8]}"


async def test_unknown_domains_are_left_alone(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as first:
        zone = (await first.admission.admit(zone_spec())).zone
        foreign = launch.domain_spec(zone, tmp_path)
        stranger = DomainSpec(uuid=type(zone.uuid)(int=5), name="theirs", memory_bytes=1)
        await toolstack.create(stranger)
        await toolstack.create(foreign)
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: not protectd.registry.zones)
        assert [domain.name for domain in await toolstack.list()] == ["theirs"]


async def test_a_silent_zone_holds_up_nobody(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec("silent"))
        await protectd.launcher.launch(zone_spec("good"))
    silent = toolstack.of_zone("silent").agent
    silent.available.clear()
    async with running(tmp_path, toolstack) as protectd:
        hasten(protectd, boot=600.0)
        await until(lambda: protectd.registry.zones["good"].connected)
        await protectd.launcher.launch(zone_spec("new"))
        assert not protectd.registry.zones["silent"].connected
    # The zone stays, and is found again at its first answer.
    async with running(tmp_path, toolstack) as protectd:
        hasten(protectd, boot=0.5)
        await asyncio.sleep(0.6)
        assert not protectd.registry.zones["silent"].connected
        silent.available.set()
        await until(lambda: protectd.registry.zones["silent"].connected)


async def test_a_domain_ended_during_the_absence_is_dead(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
    toolstack.kill("z1", ShutdownReason.POWEROFF)
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: protectd.registry.zones["z1"].zone.state is ZoneState.DEAD)
        assert protectd.registry.zones["z1"].zone.death_kind == "PoweredOff"


# -- watching


async def test_a_watch_shows_zones_and_changes(protectd: Assembly) -> None:
    await protectd.launcher.launch(zone_spec("old"))
    events = protectd.registry.hub.watch()
    seen = [await anext(events), await anext(events)]
    assert isinstance(seen[0], told.ZoneSeen) and seen[0].zone.id == "old" and seen[0].connected
    assert isinstance(seen[1], told.Synced)
    await protectd.launcher.launch(zone_spec("new"))
    await protectd.removal.destroy("new")
    states = []
    while not isinstance(event := await anext(events), told.ZoneGone):
        assert isinstance(event, told.ZoneSeen)
        states.append(event.zone.state)
    assert event.zone_id == "new"
    assert states == [ZoneState.CREATING, ZoneState.RUNNING, ZoneState.DESTROYING]
    await events.aclose()


async def test_a_slow_watcher_is_cut_off(protectd: Assembly) -> None:
    zone = await protectd.launcher.launch(zone_spec())
    events = protectd.registry.hub.watch()
    await anext(events)
    for _ in range(hub.QUEUE_LIMIT + 1):
        protectd.registry.hub.publish(told.ZoneSeen(zone, connected=True))
    assert isinstance(await anext(events), told.Synced)
    with pytest.raises(Exhausted, match="watch again"):
        await anext(events)
    again = protectd.registry.hub.watch()
    assert isinstance(await anext(again), told.ZoneSeen)
    await again.aclose()


async def test_a_full_disk_keeps_no_domain_alive(
    protectd: Assembly, toolstack: MemoryToolstack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await protectd.launcher.launch(zone_spec())

    def full(*_: object) -> None:
        raise Exhausted("write state", "the store", "database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(protectd.registry.store, "save_zone", full)
        patch.setattr(protectd.registry.store, "forget_zone", full)
        with pytest.raises(Exhausted, match="disk is full"):
            await protectd.launcher.launch(zone_spec("z2"))
        assert list(protectd.registry.zones) == ["z1"] and protectd.ledger.reserved_bytes == 256 * MIB
        with pytest.raises(Exhausted, match="disk is full"):
            await protectd.removal.destroy("z1")
        assert toolstack.destroyed == ["z1"]
    await protectd.removal.destroy("z1")
    assert nothing_left(protectd, toolstack)


async def test_a_guest_with_an_unreleased_disk_does_not_delay_its_end(
    protectd: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    """A verb that waits for the guest holds the workload, and the zone's end waits for the workload."""
    await protectd.launcher.launch(zone_spec())
    await protectd.creation.create(workload_spec(tmp_path))
    domain = toolstack.of_zone("z1")
    domain.keeps_disks = True
    detaching, _ = toolstack.gate("detach_disk")
    toolstack.gates["detach_disk"].set()
    deleting = asyncio.create_task(protectd.workload_removal.delete("w1"))
    await asyncio.wait_for(detaching.wait(), 60)
    destroying = asyncio.create_task(protectd.removal.destroy("z1"))
    await asyncio.wait([destroying], timeout=60)
    in_time = destroying.done()
    domain.abandoned.set()
    await asyncio.wait([deleting, destroying])
    assert in_time and nothing_left(protectd, toolstack)
