"""ResizeZone on a real zone: the kernel's limits, the zone's report, and SIGKILL at each step."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest

from tests.support.protect import leftovers
from tests.support.protect.crashes import armed, connected, killed, steps
from tests.support.protect.zones import TIMEOUT, Zones, needs_protectd
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, pytest.mark.slow, needs_protectd]

MIB = 1 << 20
BEGIN = pb.ZoneResources(
    memory_bytes=256 * MIB, memory_max_bytes=512 * MIB, vcpus=2, vcpus_max=4, weight=256, cap=0
)
MORE = pb.ZoneResources(memory_bytes=512 * MIB, vcpus=4, weight=512, cap=30)
LESS = pb.ZoneResources(memory_bytes=128 * MIB, vcpus=1, weight=64, cap=30)
Shown = tuple[int, int, int, int]


def numbers(resources: pb.ZoneResources) -> Shown:
    return resources.memory_bytes // MIB, resources.vcpus, resources.weight, resources.cap


async def shown(zones: Zones) -> Shown:
    zone = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
    return numbers(zone.resources)


def limits(zones: Zones) -> tuple[int, int]:
    """MiB of memory, and percent of a CPU, that the kernel lets the zone have."""
    memory = quota = 0
    for group in map(Path, leftovers.cgroups(zones.protectd.run_dir)):
        for name in ("memory.max", "memory.limit_in_bytes", "cpu.max", "cpu.cfs_quota_us"):
            if (group / name).exists():
                value = int((group / name).read_text().split()[0])
                memory, quota = (value, quota) if name.startswith("memory") else (memory, value)
    return memory // MIB, quota // 1000


def held_for(size: Shown) -> tuple[int, int]:
    return size[0], size[3] or 100 * size[1]


async def seen_inside(zones: Zones) -> tuple[int, int]:
    facts = await zones.clients.zones.ZoneFacts(pb.ZoneFactsRequest(id="z1"), timeout=TIMEOUT)
    stats = await zones.clients.zones.ZoneStats(pb.ZoneStatsRequest(ids=["z1"]), timeout=TIMEOUT)
    return stats.rows[0].memory_total_bytes // MIB, facts.cpus


async def resize(zones: Zones, wanted: pb.ZoneResources) -> pb.ResizeZoneResponse:
    asks = pb.ResizeZoneRequest(id="z1", resources=wanted)
    answer: pb.ResizeZoneResponse = await zones.clients.zones.ResizeZone(asks, timeout=TIMEOUT)
    return answer


async def test_zone_grows_and_shrinks_to_each_requested_size(zones: Zones) -> None:
    await zones.create_zone(resources=BEGIN)
    for wanted in (MORE, LESS, BEGIN):
        asked = pb.ZoneResources(
            memory_bytes=wanted.memory_bytes, vcpus=wanted.vcpus, weight=wanted.weight, cap=wanted.cap
        )
        assert list((await resize(zones, asked)).not_done) == []
        assert await shown(zones) == numbers(wanted)
        assert limits(zones) == held_for(numbers(wanted))
        assert await seen_inside(zones) == numbers(wanted)[:2]
    stats = await zones.clients.zones.ZoneStats(pb.ZoneStatsRequest(ids=["z1"]), timeout=TIMEOUT)
    (row,) = stats.rows
    assert (row.host_memory_bytes // MIB, row.host_vcpus) == numbers(BEGIN)[:2]
    assert row.host_cpu_usage_ns > 0


async def test_memory_in_use_is_not_taken(zones: Zones) -> None:
    """The refusal names the possible size; everything else is unchanged, and the workload runs on."""
    await zones.create_zone(resources=BEGIN)
    fill = "dd if=/dev/zero of=/kept bs=1M count=150 2>/dev/null; echo full; sleep 1000"
    await zones.run("/bin/sh", "-c", fill)
    await until(lambda: any("full" in line for line in zones.lines()))
    answer = await resize(zones, LESS)
    (not_done,) = answer.not_done
    assert not_done.startswith("memory: 128 MiB wanted, the zone can go down to ")
    assert 150 < int(not_done.split("down to ")[1].split()[0]) < 256
    assert await shown(zones) == numbers(BEGIN) == numbers(answer.zone.resources)
    assert limits(zones) == held_for(numbers(BEGIN))
    assert (await zones.get()).state == pb.WORKLOAD_STATE_RUNNING


def _direction(step: str) -> pb.ZoneResources:
    return LESS if step.endswith("-taken") else MORE


@killed_at(steps("zone-resize"))
async def test_kill_during_a_resize(zones: Zones, step: str) -> None:
    """All of the resize, or nothing; record, host and zone agree."""
    await zones.create_zone(resources=BEGIN)
    await zones.run("/bin/sleep", "1000")
    await armed(zones, step)
    await killed(zones, resize(zones, _direction(step)))
    await connected(zones)
    expected = numbers(MORE if step == "zone-resize.done" else BEGIN)
    await _until_settled(zones, expected)
    assert (await zones.get()).state == pb.WORKLOAD_STATE_RUNNING
    assert list((await resize(zones, LESS)).not_done) == []
    assert await seen_inside(zones) == numbers(LESS)[:2]


@killed_at(steps("zone-restore"))
async def test_kill_during_the_undo_of_a_resize(zones: Zones, step: str) -> None:
    await zones.create_zone(resources=BEGIN)
    await armed(zones, "zone-resize.cpus-given")
    with suppress(grpc.aio.AioRpcError):
        await resize(zones, MORE)
    assert await zones.protectd.daemon.ended() == -9
    zones.protectd.configure(faults={"kill_at": step})
    with suppress(AssertionError):
        await zones.protectd.daemon.start()
    assert await zones.protectd.daemon.ended() == -9
    zones.protectd.configure(faults={})
    await zones.protectd.daemon.start()
    await connected(zones)
    await _until_settled(zones, numbers(BEGIN))


async def _until_settled(zones: Zones, expected: Shown) -> None:
    """The zone is adopted in the background, and its agent told last."""
    found: tuple[object, ...] = ()
    wanted = (expected, held_for(expected), expected[:2])

    async def settled() -> bool:
        nonlocal found
        found = (await shown(zones), limits(zones), await seen_inside(zones))
        return found == wanted

    await until(settled, what=lambda: f"{found}, not {wanted}")
