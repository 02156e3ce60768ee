"""Clocks of real zones beside dom0's, with changes of both; and the zones' first random bytes."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from protect.agent import queries
from protect.assembly import Assembly
from protect.model.toolstack import DomainSpec, Mode
from protect.model.zone import domain_name
from protect.state.runtime import ZoneRuntime
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from protect.toolstack.libxl.xenstore.store import SEED
from protect.volumes.host_volumes import HostVolumes
from protect.zones.upkeep import clock
from tests.support.agent.zone import BUILD
from tests.support.protect.protect_node import hasten, running, zone_spec
from tests.support.waiting import until
from tests.xen import machine
from tests.xen.inside.conftest import MIB, until_console
from xenbind.xenstore import Xenstore

PATIENCE = 300.0
MS = 1_000_000
BOUND_NS = 50 * MS
"""The error bound of a zone's clock."""
NOW = 10.0
"""Seconds for "at once" under emulation; a regular turn of the clock comes after minutes."""


@asynccontextmanager
async def _toolstack(kernels: Path, arguments: str = "quiet") -> AsyncIterator[LibxlToolstack]:
    """A toolstack whose domains boot the real agent."""
    settings = LibxlSettings(kernel=machine.zone_kernel(), kernel_arguments=arguments)
    toolstack = LibxlToolstack(kernels, BUILD, settings)
    await toolstack.start()
    before = {info.id for info in await toolstack.list()}
    try:
        yield toolstack
    finally:
        for info in await toolstack.list():
            if info.id not in before:
                await toolstack.destroy(info.id)
        await toolstack.close()


async def _offset(runtime: ZoneRuntime) -> int:
    """By how much the zone is ahead, in ns, from a reading that is good enough to tell."""
    while True:
        reading = await clock._measure(runtime)
        if reading.error_ns <= BOUND_NS // 5:
            return reading.offset_ns


async def _right(runtime: ZoneRuntime, seconds: float = NOW, bound_ns: int = BOUND_NS) -> None:
    """Wait until the zone's clock is right."""
    seen: list[int] = []

    async def right() -> bool:
        seen.append(await _offset(runtime))
        return abs(seen[-1]) <= bound_ns

    await until(right, seconds, lambda: f"ahead by {[offset / MS for offset in seen[-5:]]} ms")


@contextmanager
def _host_clock() -> Iterator[Callable[[float], None]]:
    """Sets dom0's clock forward or back, and right again in the end."""
    wrong = 0.0

    def move(seconds: float) -> None:
        nonlocal wrong
        time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns() + int(seconds * 1e9))
        wrong += seconds

    try:
        yield move
    finally:
        move(-wrong)


async def _xl(verb: str, runtime: ZoneRuntime) -> None:
    command = ["xl", verb, str(runtime.zone.domain_id)]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)


@pytest.mark.parametrize("mode", Mode)
async def test_a_zone_keeps_the_hosts_time(kernels: Path, tmp_path: Path, mode: Mode) -> None:
    async with _toolstack(kernels) as toolstack:
        volumes = HostVolumes(tmp_path / "volumes", BUILD / "lookup")
        async with running(tmp_path, toolstack, volumes=volumes) as protectd:  # type: ignore[arg-type]
            hasten(protectd, boot=PATIENCE, call=PATIENCE, clock=600.0)
            await protectd.launcher.launch(replace(zone_spec("z1", 160 * MIB), mode=mode))
            keeping = asyncio.create_task(protectd.clocks.keep())
            try:
                runtime = protectd.registry.zones["z1"]
                await _right(runtime)
                await _when_the_hosts_is_set(runtime)
                await _after_pauses(protectd, runtime)
                await _when_the_zones_is_set(protectd, runtime)
            finally:
                keeping.cancel()


async def _when_the_hosts_is_set(runtime: ZoneRuntime) -> None:
    with _host_clock() as move:
        for seconds in (100.0, -3600.0, 0.2):
            move(seconds)
            await _right(runtime)
    await _right(runtime)


async def _after_pauses(protectd: Assembly, runtime: ZoneRuntime) -> None:
    """The host's time has changed when the zone goes on."""
    with _host_clock() as move:
        await _xl("pause", runtime)
        move(30.0)
        await until(_busy(runtime))
        await asyncio.sleep(3)
        assert runtime.clock.busy, "a paused zone has answered"
        await _xl("unpause", runtime)
        await _right(runtime)
    await _right(runtime)
    await _xl("pause", runtime)
    await asyncio.sleep(5)
    await _xl("unpause", runtime)
    # No question in the meantime, and no change.
    assert abs(await _offset(runtime)) <= BOUND_NS


def _busy(runtime: ZoneRuntime) -> Callable[[], Awaitable[bool]]:
    async def busy() -> bool:
        return runtime.clock.busy

    return busy


async def _when_the_zones_is_set(protectd: Assembly, runtime: ZoneRuntime) -> None:
    """As by a privileged container; a small error, to be slewed."""
    await queries.clock(runtime.client, 7_200_000 * MS, step=True)
    assert abs(await _offset(runtime)) > 7_000_000 * MS
    protectd.clocks.begin(runtime)
    await _right(runtime)
    await queries.clock(runtime.client, 15 * MS, step=True)
    # 15 ms at 500 parts in a million take half a minute. On a busy machine even the best reading of a check
    # may be wrong by as much, and its correction as well: the next check finds the rest.
    for is_last in (False, False, True):
        protectd.clocks.begin(runtime)
        try:
            return await _right(runtime, 60.0, 5 * MS)
        except AssertionError:
            if is_last:
                raise


@pytest.mark.parametrize("mode", Mode)
async def test_the_first_random_bytes_do_not_wait(kernels: Path, mode: Mode) -> None:
    """If the CPU's random numbers are not trusted, the kernel has no random numbers at this time."""
    async with _toolstack(kernels, "random.trust_cpu=off") as toolstack:
        seeded, bare = [
            DomainSpec(uuid := uuid4(), domain_name(name, uuid), 160 * MIB, 1, mode)
            for name in ("seeded", "bare")
        ]
        domain = await toolstack.create(seeded)
        node = f"/local/domain/{domain}/{SEED}"
        with Xenstore() as store:
            assert len(store.read(node) or b"") == 64
            await toolstack.unpause(domain)
            said = await until_console(toolstack, domain, b"(unnamed) is up", PATIENCE)
            assert store.read(node) is None, "the seed can be read again"
            assert b"have to wait" not in said and b"no seed" not in said
            await toolstack.destroy(domain)
            other = await toolstack.create(bare)
            store.remove(f"/local/domain/{other}/{SEED}")
            await toolstack.unpause(other)
            said = await until_console(toolstack, other, b"(unnamed) is up", PATIENCE)
        assert b"data/seed: the host gave no seed" in said
