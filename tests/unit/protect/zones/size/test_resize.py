"""A running zone's size: given and taken with the zone's own word for it, all or nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import Exhausted, Fault, Refused
from protect.assembly import Assembly
from protect.model.domain.shares import CpuShares
from protect.model.zone import Zone, ZoneSpec
from protect.state.store import Intent
from protect.zones.size.resize import ZoneSize
from tests.support.protect.memory_toolstack import MemoryDomain, MemoryToolstack
from tests.support.protect.protect_node import hasten, resize, running, zone_spec
from tests.support.waiting import until

MIB = 1 << 20
SPEC = replace(
    zone_spec(),
    memory_bytes=256 * MIB,
    memory_max_bytes=512 * MIB,
    vcpus=2,
    vcpus_max=4,
    shares=CpuShares(512),
)


def impatient(protectd: Assembly) -> None:
    hasten(protectd, resize=0.05)


def recorded(protectd: Assembly) -> tuple[Zone, Intent | None]:
    saved = protectd.registry.store.load()
    return saved.zones[0], saved.zone_intents.get("z1")


def held(domain: MemoryDomain) -> tuple[int, int, CpuShares]:
    return domain.memory // MIB, domain.agent.size.cpus, domain.cpu_shares[-1]


def is_as_before(protectd: Assembly, domain: MemoryDomain, spec: ZoneSpec = SPEC) -> bool:
    zone, intent = recorded(protectd)
    shown = protectd.registry.zones["z1"].zone.spec
    return (
        held(domain) == (spec.memory_bytes // MIB, spec.vcpus, spec.shares)
        and (zone.spec, intent, shown) == (spec, None, spec)
        and protectd.ledger.reserved_bytes == spec.memory_bytes
    )


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ZoneSize(memory_bytes=512 * MIB), (512, 2, CpuShares(512))),
        (ZoneSize(memory_bytes=200 * MIB), (200, 2, CpuShares(512))),
        (ZoneSize(vcpus=4), (256, 4, CpuShares(512))),
        (ZoneSize(vcpus=1), (256, 1, CpuShares(512))),
        (ZoneSize(memory_bytes=300 * MIB, vcpus=1, weight=9, cap=50), (300, 1, CpuShares(9, 50))),
        (ZoneSize(memory_bytes=200 * MIB, vcpus=3, cap=50), (200, 3, CpuShares(512, 50))),
    ],
)
async def test_a_zone_gets_the_requested_size(
    tmp_path: Path, toolstack: MemoryToolstack, wanted: ZoneSize, expected: tuple[int, int, CpuShares]
) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        domain = toolstack.of_zone("z1")
        assert await resize(protectd, "z1", wanted) == []
        assert held(domain) == expected
        zone, intent = recorded(protectd)
        assert (zone.spec.memory_bytes // MIB, zone.spec.vcpus, zone.spec.shares) == expected
        assert zone.spec.most_memory == 512 * MIB and zone.spec.most_vcpus == 4
        assert intent is None and zone.spec == protectd.registry.zones["z1"].zone.spec
        assert protectd.ledger.reserved_bytes == zone.spec.memory_bytes
        back = ZoneSize(memory_bytes=256 * MIB, vcpus=2, weight=512, cap=0)
        assert await resize(protectd, "z1", back) == []
        assert held(domain) == (256, 2, CpuShares(512))


async def test_memory_beyond_the_built_size_comes_in_steps(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    """Each step adds sixteen times the available memory; the page structures take a 64th of the step."""
    spec = replace(SPEC, memory_max_bytes=0, hotplug_max_bytes=4096 * MIB)
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(spec)
        domain = toolstack.of_zone("z1")
        domain.agent.size.memory_available_bytes = 10 * MIB
        assert await resize(protectd, "z1", ZoneSize(memory_bytes=1024 * MIB)) == []
        assert [one // MIB for one in toolstack.targets] == [256 + 160, 1024]
        (not_done,) = await resize(protectd, "z1", ZoneSize(memory_bytes=4097 * MIB))
        assert not_done.endswith("the zone can have 4096 MiB (memory_max of its handler or profile)")
        assert await resize(protectd, "z1", ZoneSize(memory_bytes=256 * MIB)) == []
        assert held(domain)[0] == 256


async def test_refused_step_undoes_the_steps_before(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    spec = replace(SPEC, memory_max_bytes=0, hotplug_max_bytes=4096 * MIB)
    async with running(tmp_path, toolstack) as protectd:
        impatient(protectd)
        await protectd.launcher.launch(spec)
        domain = toolstack.of_zone("z1")
        domain.agent.size.memory_available_bytes, domain.most = 0, 300 * MIB
        (not_done,) = await resize(protectd, "z1", ZoneSize(memory_bytes=1024 * MIB))
        assert not_done == "memory: 1024 MiB wanted, the zone took 300 MiB"
        assert is_as_before(protectd, domain, spec)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (ZoneSize(memory_bytes=513 * MIB), "memory: 513 MiB wanted, the zone can have 512 MiB"),
        (ZoneSize(memory_bytes=63 * MIB), "memory: 63 MiB wanted, memory_min of its profile is 64 MiB"),
        (ZoneSize(vcpus=5), "vCPUs: 5 wanted, the zone can have 4"),
    ],
)
async def test_size_outside_the_zones_bounds_is_refused(
    tmp_path: Path, toolstack: MemoryToolstack, wanted: ZoneSize, said: str
) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        (not_done,) = await resize(protectd, "z1", replace(wanted, weight=3))
        assert not_done.startswith(said)
        assert is_as_before(protectd, toolstack.of_zone("z1"))


async def test_memory_in_use_stays_and_the_answer_says_how_much(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    """Of 256 MiB 128 are available; a few of these must stay available."""
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        domain = toolstack.of_zone("z1")
        wanted = ZoneSize(memory_bytes=100 * MIB, vcpus=1, weight=3)
        (not_done,) = await resize(protectd, "z1", wanted)
        assert not_done == "memory: 100 MiB wanted, the zone can go down to 132 MiB: the rest is in use"
        assert is_as_before(protectd, domain)
        assert await resize(protectd, "z1", ZoneSize(memory_bytes=132 * MIB)) == []


async def test_a_zone_with_a_broken_promise_keeps_its_size(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    """The hypervisor's count decides; all changes are put back, also earlier changes of the call."""
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        impatient(protectd)
        domain = toolstack.of_zone("z1")
        domain.kept = 180 * MIB
        (not_done,) = await resize(protectd, "z1", ZoneSize(memory_bytes=150 * MIB, vcpus=1, weight=3))
        assert not_done == "memory: 150 MiB wanted, the zone can go down to 180 MiB: the rest is in use"
        domain.kept = 0
        assert is_as_before(protectd, domain)


async def test_a_zone_lying_about_its_memory_gets_no_more(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        impatient(protectd)
        size = toolstack.of_zone("z1").agent.size
        size.memory_total_bytes, size.memory_available_bytes = 2**64 - 1, 2**64 - 1
        assert await resize(protectd, "z1", ZoneSize(memory_bytes=300 * MIB)) != []
        size.memory_total_bytes, size.memory_available_bytes = 0, 2**64 - 1
        assert await resize(protectd, "z1", ZoneSize(memory_bytes=200 * MIB)) != []
        assert recorded(protectd) == (protectd.registry.zones["z1"].zone, None)
        assert protectd.registry.zones["z1"].zone.spec == SPEC


@pytest.mark.parametrize("memory", [200, 300])
@pytest.mark.parametrize("silent", ["stubborn", "mute"])
async def test_memory_counted_by_only_zone_or_hypervisor_is_refused(
    tmp_path: Path, toolstack: MemoryToolstack, silent: str, memory: int
) -> None:
    """Neither the zone's word is enough nor the hypervisor's count."""
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        impatient(protectd)
        domain = toolstack.of_zone("z1")
        setattr(domain, silent, frozenset({"memory"}))
        (not_done,) = await resize(protectd, "z1", ZoneSize(memory_bytes=memory * MIB))
        assert not_done.startswith(f"memory: {memory} MiB wanted, the zone ")
        assert is_as_before(protectd, domain)


@pytest.mark.parametrize(("stubborn", "mute"), [(True, True), (False, True), (True, False)])
async def test_unstarted_vcpus_undo_the_resize(
    tmp_path: Path, toolstack: MemoryToolstack, stubborn: bool, mute: bool
) -> None:
    """As for memory."""
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        impatient(protectd)
        domain = toolstack.of_zone("z1")
        domain.stubborn, domain.mute = (frozenset({"cpus"} if on else ()) for on in (stubborn, mute))
        for vcpus in (1, 3):
            wanted = ZoneSize(memory_bytes=300 * MIB, vcpus=vcpus, cap=10)
            (not_done,) = await resize(protectd, "z1", wanted)
            said, counted = (2 if fixed else vcpus for fixed in (mute, stubborn))
            cause = f"vCPUs: {vcpus} wanted, the zone says that it runs {said}, Xen counts {counted}"
            assert not_done == cause
            assert is_as_before(protectd, domain)


async def test_a_late_cpu_is_started(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    """The guest's kernel hears late that the taken CPU is available again."""
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        domain = toolstack.of_zone("z1")
        domain.agent.deaf = 3
        (not_done,) = await resize(protectd, "z1", ZoneSize(memory_bytes=100 * MIB, vcpus=1))
        assert not_done.startswith("memory: 100 MiB wanted")
        assert is_as_before(protectd, domain)


async def test_a_lost_cpu_is_reported(
    tmp_path: Path, toolstack: MemoryToolstack, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        impatient(protectd)
        toolstack.of_zone("z1").agent.deaf = 1 << 30
        assert await resize(protectd, "z1", ZoneSize(memory_bytes=100 * MIB, vcpus=1)) != []
        assert "the zone does not start its CPUs" in caplog.text


@pytest.mark.parametrize("step", ["set_memory", "set_vcpus", "set_shares"])
async def test_resize_refused_by_the_hypervisor_is_undone(
    tmp_path: Path, toolstack: MemoryToolstack, step: str
) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        toolstack.failing.add(step)
        with pytest.raises(Fault, match=step):
            await resize(protectd, "z1", ZoneSize(memory_bytes=300 * MIB, vcpus=3, weight=1))
        # The old size could not be restored: the next start restores it, and until the start the memory
        # counts.
        assert recorded(protectd)[1] == Intent("zone.resize", data={"memory_bytes": str(300 * MIB)})
        assert protectd.registry.zones["z1"].zone.spec == SPEC
        assert protectd.ledger.reserved_bytes == 300 * MIB
    toolstack.failing.clear()
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: recorded(protectd)[1] is None)
        assert is_as_before(protectd, toolstack.of_zone("z1"))


async def test_memory_beyond_the_host_is_refused(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack, total=400 * MIB) as protectd:
        await protectd.launcher.launch(SPEC)
        with pytest.raises(Exhausted, match="needs 200 MiB, free are 144 MiB of 400 MiB"):
            await resize(protectd, "z1", ZoneSize(memory_bytes=456 * MIB, vcpus=3))
        assert is_as_before(protectd, toolstack.of_zone("z1"))
        assert await resize(protectd, "z1", ZoneSize(memory_bytes=400 * MIB)) == []
        with pytest.raises(Exhausted):
            await protectd.launcher.launch(replace(zone_spec(), id="z2", memory_bytes=64 * MIB))


async def test_two_zones_do_not_get_the_same_memory(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack, total=712 * MIB) as protectd:
        for name in ("z1", "z2"):
            await protectd.launcher.launch(replace(SPEC, id=name))
        wanted = ZoneSize(memory_bytes=456 * MIB)
        results = await asyncio.gather(
            *(resize(protectd, name, wanted) for name in ("z1", "z2")),
            return_exceptions=True,
        )
        assert [] in results and sum(isinstance(one, Exhausted) for one in results) == 1
        assert protectd.ledger.reserved_bytes == 712 * MIB


async def test_memory_in_transit_is_not_promised_twice(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack, total=300 * MIB) as protectd:
        await protectd.launcher.launch(SPEC)
        entered, go_on = toolstack.gate("set_memory")
        shrinking = asyncio.create_task(resize(protectd, "z1", ZoneSize(memory_bytes=200 * MIB)))
        await entered.wait()
        small = replace(zone_spec(), id="z2", memory_bytes=100 * MIB)
        with pytest.raises(Exhausted):
            await protectd.launcher.launch(small)
        go_on.set()
        assert await shrinking == []
        await protectd.launcher.launch(small)


async def test_a_gone_caller_leaves_no_half_resize(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        entered, go_on = toolstack.gate("set_memory")
        resizing = asyncio.create_task(resize(protectd, "z1", ZoneSize(memory_bytes=300 * MIB, vcpus=3)))
        await entered.wait()
        resizing.cancel()
        go_on.set()
        await asyncio.wait([resizing])
        after = replace(SPEC, memory_bytes=300 * MIB, vcpus=3)
        assert is_as_before(protectd, toolstack.of_zone("z1"), after)


async def test_a_zone_ended_during_its_resize_is_reported(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(SPEC)
        toolstack.of_zone("z1").stubborn = frozenset({"cpus"})
        resizing = asyncio.create_task(resize(protectd, "z1", ZoneSize(vcpus=3)))
        await until(lambda: recorded(protectd)[1] is not None)
        toolstack.kill("z1")
        with pytest.raises(Refused):
            await resizing
        await until(lambda: protectd.ledger.reserved_bytes == 0)
        with pytest.raises(Refused):
            await resize(protectd, "z1", ZoneSize(vcpus=3))


async def test_an_agent_of_an_earlier_release_is_not_resized(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    """The zone's size is unknown: a decrease is left out, an increase is refused."""
    async with running(tmp_path, toolstack) as protectd:
        toolstack.resizes = False
        await protectd.launcher.launch(SPEC)
        less = ZoneSize(memory_bytes=100 * MIB, vcpus=1, weight=7)
        assert await resize(protectd, "z1", less) == []
        assert is_as_before(protectd, toolstack.of_zone("z1"), replace(SPEC, shares=CpuShares(7)))
        not_done = await resize(protectd, "z1", ZoneSize(memory_bytes=300 * MIB, vcpus=3))
        assert len(not_done) == 2 and all("earlier release" in one for one in not_done)
