"""Agents that send illegal frames, answer falsely, or do not answer: against a real protectd.

After each attack an honest zone beside the agent is unchanged.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from tests.support.agent.hostile_zone import GREETINGS, LONG, HostileZone, directory_of
from tests.support.images import busybox
from tests.support.protect.zones import TIMEOUT, Zones, failing, needs_protectd, serving
from tests.support.waiting import found
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd]
TOO_LATE = grpc.StatusCode.DEADLINE_EXCEEDED
AWAY = (grpc.StatusCode.UNAVAILABLE, TOO_LATE)

FORBIDDEN = (
    "a reply to nothing",
    "a call",
    "a stream of its own",
    "credit for nothing",
    "a second greeting",
    "a huge event",
    "no event",
    "a huge frame",
    "no data",
    "an unknown type",
    "reserved bits",
    "unknown flags",
    "stream 0",
)
"""Frames that end the zone of their sender."""


@pytest.fixture
async def honest(tmp_path: Path, busybox_image: Path) -> AsyncIterator[Zones]:
    """A zone with a workload.

    Afterwards the zone answers, its workload runs, and the log has no odd character.
    """
    async with serving(tmp_path, busybox_image, timeouts={"call": "3s"}) as zones:
        await zones.create_zone("good")
        await zones.run("/bin/sleep", "3600", workload_id="good-w", zone_id="good")
        yield zones
        assert (await zones.get("good-w")).state == pb.WORKLOAD_STATE_RUNNING
        assert await zones.exec("/bin/echo", "alive", workload_id="good-w") == (b"alive\n", b"", 0)
        said = zones.protectd.daemon.log.read_bytes()
        assert b"\x1b" not in said and b"\n2026-01-01T00:00:00Z CRITICAL forged" not in said


@pytest.fixture
async def stack() -> AsyncIterator[ExitStack]:
    with ExitStack() as made:
        yield made


async def _turned(zones: Zones, stack: ExitStack, attack: str) -> HostileZone:
    """The zone "bad": its agent is hostile from now on, its workload is "bad-w"."""
    zone = await zones.create_zone("bad")
    await zones.run("/bin/sleep", "3600", workload_id="bad-w", zone_id="bad")
    directory = directory_of(zones.protectd.run_dir, zone.domain_id)
    hostile = await asyncio.to_thread(HostileZone, directory, attack)
    stack.callback(hostile.stop)
    assert await asyncio.to_thread(hostile.attacked.wait, TIMEOUT)
    return hostile


async def _zone(zones: Zones) -> pb.Zone:
    return await zones.clients.zones.GetZone(pb.GetZoneRequest(id="bad"), timeout=TIMEOUT)


async def _cut_off(zones: Zones) -> str:
    async def reason() -> str:
        return (await _zone(zones)).death_reason

    return await found(reason)


@pytest.mark.parametrize("attack", FORBIDDEN)
async def test_illegal_frame_of_an_agent_ends_its_zone(honest: Zones, stack: ExitStack, attack: str) -> None:
    await _turned(honest, stack, attack)
    assert "channel" in await _cut_off(honest)
    await honest.destroy_zone("bad")


@pytest.mark.parametrize("attack", [name for name in GREETINGS if name != "half a greeting"])
async def test_impossible_greeting_ends_its_zone(honest: Zones, stack: ExitStack, attack: str) -> None:
    """Whatever version the agent claims, it gets only ours."""
    await _turned(honest, stack, attack)
    assert "channel" in await _cut_off(honest)
    await honest.destroy_zone("bad")


@pytest.mark.parametrize("attack", ["half a greeting", "half a frame", "half closed", "silent"])
async def test_agent_with_half_an_answer_delays_its_zone_alone(
    honest: Zones, stack: ExitStack, attack: str
) -> None:
    """Each verb ends at its deadline, or at once; calls to other zones do not wait."""
    await _turned(honest, stack, attack)
    stats = pb.ZoneStatsRequest(ids=["good"])
    tried = (
        honest.exec("/bin/true", workload_id="bad-w"),
        honest.signal(9, "bad-w"),
        honest.clients.zones.ZoneFacts(pb.ZoneFactsRequest(id="bad"), timeout=TIMEOUT),
        honest.create(["/bin/true"], "bad-w2", zone_id="bad"),
    )
    late = [asyncio.ensure_future(each) for each in tried]
    while not all(each.done() for each in late):
        assert await honest.exec("/bin/echo", "alive", workload_id="good-w") == (b"alive\n", b"", 0)
        assert [row.zone_id for row in (await honest.clients.zones.ZoneStats(stats)).rows] == ["good"]
    for each in late:
        with suppress(grpc.aio.AioRpcError):  # of an honest part of the attack: the agent itself goes on
            await each
    failed = [error for each in late if isinstance(error := each.exception(), grpc.aio.AioRpcError)]
    assert failed and all(error.code() in AWAY for error in failed), failed
    with suppress(grpc.aio.AioRpcError):
        await honest.delete("bad-w")
    await honest.destroy_zone("bad")


async def test_exits_of_others_are_no_exits(honest: Zones, stack: ExitStack) -> None:
    """A zone may report the end of its own container; of two exit statuses the first counts."""
    await _turned(honest, stack, "exits")
    ended = await honest.wait("bad-w")
    assert ended.exit_code == 0
    assert (await honest.get("good-w")).state == pb.WORKLOAD_STATE_RUNNING
    assert (await honest.get("bad-w")).exit_code == 0


async def test_words_of_an_error_are_plain(honest: Zones, stack: ExitStack) -> None:
    await _turned(honest, stack, "errors")
    for call in (honest.exec("/bin/true", workload_id="bad-w"), honest.signal(9, "bad-w")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        said = refused.value.details() or ""
        assert said.isprintable() and "forged" in said and len(said) < len(LONG)


async def test_impossible_figures_are_left_out(honest: Zones, stack: ExitStack) -> None:
    """Claims about foreign workloads, impossible averages, invalid names."""
    await _turned(honest, stack, "figures")
    answer = await honest.clients.zones.ZoneStats(pb.ZoneStatsRequest(), timeout=TIMEOUT)
    rows = {row.zone_id: row for row in answer.rows}
    assert set(rows) == {"good", "bad"}
    assert [one.id for one in rows["bad"].workloads] == ["bad-w"]
    assert [one.id for one in rows["good"].workloads] == ["good-w"]
    bad = rows["bad"].workloads[0]
    assert not any(bad.HasField(name) for name in ("cpu_pressure", "memory_pressure", "io_pressure"))
    assert bad.timestamp_ns > 0 and rows["bad"].timestamp_ns > 0 and not rows["bad"].interfaces
    assert rows["good"].cpu_usage_ns < 1 << 60


async def test_terminal_without_a_reading_client_blocks_itself_alone(honest: Zones) -> None:
    """The terminal floods, changes its size again and again, and gets signals that do not exist."""
    process = busybox.process("/bin/sh", "-c", "while :; do echo flood; done", tty=True)
    floods = [await _open(honest, process) for _ in range(4)]
    for number in (0, 65, (1 << 31) - 1):
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await honest.signal(number, "good-w")
    for _ in range(5):
        assert await honest.exec("/bin/echo", "alive", workload_id="good-w") == (b"alive\n", b"", 0)
    for call in floods:
        call.cancel()
    # The programs end with them.
    lists = "for p in /proc/[0-9]*; do cat $p/cmdline; done 2>/dev/null"
    seen = b"flood"

    async def gone() -> None:
        nonlocal seen
        while b"echo flood" in seen:
            seen = (await honest.exec("/bin/sh", "-c", lists, workload_id="good-w"))[0].replace(b"\0", b" ")

    await asyncio.wait_for(gone(), TIMEOUT)


async def _open(
    zones: Zones, process: dict[str, object]
) -> grpc.aio.StreamStreamCall[pb.ExecInput, pb.ExecOutput]:
    """Begin an exec on a terminal, and read no output."""
    # Without an iterator the caller writes, which the stubs of grpc do not know.
    call = zones.clients.workloads.Exec(timeout=TIMEOUT)  # type: ignore[call-arg]
    start = pb.ExecStart(workload_id="good-w", process=json.dumps(process).encode(), tty=True)
    await call.write(pb.ExecInput(start=start))
    for width in range(1, 200):
        await call.write(pb.ExecInput(resize=pb.TerminalSize(rows=1, columns=width)))
    await call.read()
    return call
