"""Zones whose agents send legal but useless frames, or far more than requested."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.agent.hostile_zone import LEGAL, HostileZone, directory_of
from tests.support.protect.zones import TIMEOUT, Zones, needs_protectd
from tests.support.waiting import found, until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd]
MIB = 1 << 20


@pytest.fixture
async def honest(zones: Zones) -> AsyncIterator[Zones]:
    """A zone with a workload, safe from other zones: the answers are the same in the end."""
    await zones.create_zone("good")
    await zones.run("/bin/sleep", "3600", workload_id="good-w", zone_id="good")
    yield zones
    assert await zones.exec("/bin/echo", "alive", workload_id="good-w") == (b"alive\n", b"", 0)


async def turned(zones: Zones, name: str, attack: str) -> HostileZone:
    """Make a zone with a silent workload, and turn its agent hostile."""
    zone = await zones.create_zone(name)
    await zones.run("/bin/sleep", "3600", workload_id=f"{name}-w", zone_id=name)
    hostile = await asyncio.to_thread(
        HostileZone, directory_of(zones.protectd.run_dir, zone.domain_id), attack
    )
    assert await asyncio.to_thread(hostile.attacked.wait, TIMEOUT)
    return hostile


async def zone_of(zones: Zones, name: str) -> pb.Zone:
    return await zones.clients.zones.GetZone(pb.GetZoneRequest(id=name), timeout=TIMEOUT)


async def connected(zones: Zones, name: str) -> None:
    async def adopted() -> bool:
        return (await zone_of(zones, name)).channel_connected

    await until(adopted)


async def cut_off(zones: Zones, name: str) -> str:
    """Wait for the end of a zone: the reason."""

    async def reason() -> str:
        return (await zone_of(zones, name)).death_reason

    return await found(reason)


async def stats_of(zones: Zones, *names: str) -> list[str]:
    request = pb.ZoneStatsRequest(ids=names)
    answer = await zones.clients.zones.ZoneStats(request, timeout=TIMEOUT)
    return [one.zone_id for one in answer.rows]


def memory(zones: Zones, line: str = "VmHWM") -> int:
    """The memory of protectd in bytes; VmHWM is its peak."""
    process = zones.protectd.daemon.process
    assert process is not None
    found = re.search(rf"{line}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("attack", ["data", "large-data", "credit", "fin"])
async def test_frames_without_effect_are_not_free(honest: Zones, attack: str) -> None:
    with ExitStack() as stack:
        stack.callback((await turned(honest, "bad", attack)).stop)
        assert "without effect" in await cut_off(honest, "bad")


async def test_reply_is_bounded_by_its_request(honest: Zones) -> None:
    """Of 1 MiB half a million objects were made, of 176 MiB."""
    before = memory(honest, "VmRSS")
    with ExitStack() as stack:
        stack.callback((await turned(honest, "bad", "stats")).stop)
        await connected(honest, "bad")
        assert await stats_of(honest, "bad", "good") == ["good"]
        assert "REPLY" in await cut_off(honest, "bad")
    assert memory(honest) - before < 64 * MIB


async def test_repeated_hang_ups_are_a_single_line_of_the_log(honest: Zones) -> None:
    with ExitStack() as stack:
        bad = await turned(honest, "bad", "hang-up")
        stack.callback(bad.stop)
        await until(lambda: bad.connections >= 6)
        lines = honest.protectd.daemon.log.read_text().splitlines()
        told = [line for line in lines if "channel down" in line and "DEBUG" not in line.upper()]
        assert len(told) == 1, told
        assert not (await zone_of(honest, "bad")).death_reason


async def test_zones_within_the_rules_leave_the_others_their_turns(honest: Zones) -> None:
    """The zones' own words are not lost either: legal frames go on."""
    before = memory(honest, "VmRSS")
    with ExitStack() as stack:
        for number, attack in enumerate(LEGAL * 2):
            stack.callback((await turned(honest, f"bad{number}", attack)).stop)
        for _ in range(20):
            assert await honest.exec("/bin/echo", "alive", workload_id="good-w") == (b"alive\n", b"", 0)
            assert "good" in await stats_of(honest)
        assert memory(honest) - before < 64 * MIB
        async with asyncio.timeout(TIMEOUT):
            for number in range(len(LEGAL) * 2):
                assert not (await zone_of(honest, f"bad{number}")).death_reason


async def test_lines_without_end_do_not_send_other_logs_to_threads(honest: Zones) -> None:
    """Newlines alone make fifty times as much of a log: each append is bounded by its lines, too."""
    await honest.run("/bin/sh", "-c", "yes '' | head -c 300000", workload_id="w1", zone_id="good")
    assert (await honest.wait("w1")).exit_code == 0
    assert honest.lines("w1") == ["stdout F "] * 300_000
