"""Particulars of the libxl toolstack; tests/contract has the promises of both toolstacks."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from daemonkit.faults import Exhausted, Invalid, Refused
from protect.model.domain.shares import CpuShares
from protect.model.errors import DomainGone
from protect.model.toolstack import (
    DiskSpec,
    DomainDeath,
    DomainId,
    DomainSpec,
    ShutdownReason,
)
from protect.model.transport import Transport
from protect.toolstack.libxl.boot import Boot
from protect.toolstack.libxl.config import domain_config
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from tests.support.waiting import until
from tests.xen.inside.conftest import MIB, MakeSpec, until_console
from xenbind import disk as vbd
from xenbind import domain
from xenbind.context import Context
from xenbind.xenstore import Xenstore

PATIENCE = 240.0
ISOLATED = "system_u:system_r:isolated_domU_t"
BACKENDS = "/local/domain/0/backend/vbd"
ANOTHER = "32001"
"""The number of no domain."""


async def _booted(toolstack: LibxlToolstack, spec: MakeSpec, test: str) -> DomainId:
    domid = await toolstack.create(spec(test, interfaces=1))
    await toolstack.unpause(domid)
    return domid


async def _connect(toolstack: LibxlToolstack, domid: DomainId) -> Transport:
    return await asyncio.wait_for(toolstack.open_channel(domid), PATIENCE)


async def _exactly(transport: Transport, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = await asyncio.wait_for(transport.read(65536), PATIENCE)
        assert chunk, "the end came too early"
        received += chunk
    return received


async def test_connections_follow_each_other(toolstack: LibxlToolstack, spec: MakeSpec) -> None:
    domid = await _booted(toolstack, spec, "echo")
    first = await _connect(toolstack, domid)
    payload = bytes(range(256)) * 1024
    sending = asyncio.create_task(first.write(payload))
    assert await _exactly(first, len(payload)) == payload
    await sending
    await first.write(b"never to be seen by the second")
    second = await _connect(toolstack, domid)
    assert await first.read(100) == b""
    with pytest.raises(ConnectionError):
        await first.write(b"x")
    await second.write(b"abc")
    assert await _exactly(second, 3) == b"abc"


async def test_a_claim_without_a_connection_does_not_wedge_the_agent(
    toolstack: LibxlToolstack, spec: MakeSpec
) -> None:
    """As after a SIGKILL between the two."""
    domid = await _booted(toolstack, spec, "echo")
    await until_console(toolstack, domid, b"serving epoch 1")
    with Xenstore() as store:
        store.write(f"/local/domain/{domid}/data/agent-used", b"1")
    transport = await _connect(toolstack, domid)
    await transport.write(b"abc")
    assert await _exactly(transport, 3) == b"abc"


@pytest.mark.parametrize("untrusted", [b"", b"0", b"-1", b"1" * 4000, b"\xff\0", b"99"])
async def test_nonsense_epochs_only_make_the_caller_wait(
    toolstack: LibxlToolstack, spec: MakeSpec, untrusted: bytes
) -> None:
    domid = await toolstack.create(spec("mute"))
    with Xenstore() as store:
        store.write(f"/local/domain/{domid}/data/agent-epoch", untrusted)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(toolstack.open_channel(domid), 0.5)


async def test_an_unread_ring_delays_only_its_writer(toolstack: LibxlToolstack, spec: MakeSpec) -> None:
    domid = await _booted(toolstack, spec, "stuck")
    transport = await _connect(toolstack, domid)
    writing = asyncio.create_task(transport.write(bytes(1 << 20)))
    reading = asyncio.create_task(transport.read(1))
    assert await toolstack.list()
    await asyncio.sleep(0.5)
    assert not writing.done() and not reading.done()
    await toolstack.destroy(domid)
    assert await asyncio.wait_for(reading, PATIENCE) == b""
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(writing, PATIENCE)
    assert domid not in [info.id for info in await toolstack.list()]


async def test_a_crash_ends_the_wait_for_the_channel(toolstack: LibxlToolstack, spec: MakeSpec) -> None:
    deaths = toolstack.deaths()
    wanted = spec("crash")
    domid = await toolstack.create(wanted)
    await toolstack.unpause(domid)
    with pytest.raises(DomainGone):
        await _connect(toolstack, domid)
    death = await asyncio.wait_for(anext(deaths), PATIENCE)
    assert death == DomainDeath(wanted.uuid, ShutdownReason.CRASH)
    assert b"Kernel panic" in await toolstack.console(domid, 65536)


async def _shared(toolstack: LibxlToolstack, spec: MakeSpec, label: str) -> bytes:
    """A zone grants a page to another zone; returns the other zone's output about its mapping."""
    giver, taker = [await toolstack.create(replace(spec(test), seclabel=label)) for test in ("grant", "map")]
    with Xenstore() as store:
        store.write(f"/local/domain/{giver}/data/peer", str(taker).encode())
        await toolstack.unpause(giver)
        said = await _until_sentence(toolstack, giver, rb"peer: granted (\d+)\.")
        store.write(f"/local/domain/{taker}/data/peer", str(giver).encode())
        store.write(f"/local/domain/{taker}/data/ref", said[1])
    await toolstack.unpause(taker)
    return (await _until_sentence(toolstack, taker, rb"peer: (mapped|cannot map)[^.]*\."))[0]


async def _until_sentence(toolstack: LibxlToolstack, domid: DomainId, pattern: bytes) -> re.Match[bytes]:
    found: list[re.Match[bytes]] = []

    async def said() -> bool:
        found.extend(re.finditer(pattern, await toolstack.console(domid, 65536)))
        return bool(found)

    await until(said, PATIENCE)
    return found[0]


async def test_colluding_zones_share_memory_unless_their_label_forbids(
    toolstack: LibxlToolstack, spec: MakeSpec
) -> None:
    """See docs/operations/handlers.md: a Xen without a security module, like Debian's, and a Xen with FLASK
    and Xen's example policy, where an operator has one."""
    assert await _shared(toolstack, spec, "") == b"peer: mapped between us."
    if toolstack.capabilities().flask:
        assert (await _shared(toolstack, spec, ISOLATED)).startswith(b"peer: cannot map")
    else:
        with pytest.raises(Refused, match="hypervisor has no FLASK"):
            await _shared(toolstack, spec, ISOLATED)


async def test_a_paused_guest_cannot_keep_a_disk(
    toolstack: LibxlToolstack, spec: MakeSpec, tmp_path: Path
) -> None:
    image = tmp_path / "disk.img"
    image.write_bytes(bytes(4096))
    domid = await toolstack.create(spec("mute"))
    await toolstack.attach_disk(domid, DiskSpec("xvda", image))
    await toolstack.detach_disk(domid, "xvda")
    assert await toolstack.disks(domid) == []
    await toolstack.attach_disk(domid, DiskSpec("xvdb", image))
    await toolstack.destroy(domid)
    await _released(image)


async def _released(image: Path) -> None:
    async def released() -> bool:
        return _loops_of(image) == 0

    await until(released)


def _loops_of(image: Path) -> int:
    found = 0
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found += backing.read_text().strip() == str(image)
    return found


async def test_a_backend_of_a_gone_domain_is_removed(
    toolstack: LibxlToolstack, context: Context, spec: MakeSpec, tmp_path: Path
) -> None:
    """As after an attachment of a disk during the domain's end."""
    image = tmp_path / "disk.img"
    image.write_bytes(bytes(4096))
    domid = await toolstack.create(spec("mute"))
    await toolstack.attach_disk(domid, DiskSpec("xvda", image))
    number = vbd.backend(context, domid, "xvda").rpartition("/")[2]
    with Xenstore() as store:
        left, others = f"{BACKENDS}/{domid}/{number}", f"{BACKENDS}/{ANOTHER}"
        nodes = {name: store.read(f"{left}/{name}") or b"" for name in store.list(left)}
        domain.destroy(context, domid)
        del nodes["physical-device"]  # written last
        try:
            for name, value in nodes.items():
                store.write(f"{left}/{name}", value)
            for place in ("/libxl", "/local/domain"):
                store.write(f"{place}/{domid}/device/vbd/{number}/backend", left.encode())
            store.write(f"{others}/{number}/script", b"/etc/xen/scripts/block")
            await toolstack._census.backends.remove_left()
            assert set(store.list(BACKENDS)) & {str(domid), ANOTHER} == {ANOTHER}
            assert str(domid) not in [*store.list("/libxl"), *store.list("/local/domain")]
        finally:
            store.remove(others)
    await toolstack.destroy(domid)
    await _released(image)


async def test_domain_takes_its_memory_and_excess_is_refused(
    toolstack: LibxlToolstack, spec: MakeSpec
) -> None:
    info = await toolstack.physical_info()
    with pytest.raises(Invalid, match=r"need \d+ MiB"):
        await toolstack.create(spec("mute", memory=16 * MIB))
    with pytest.raises(Exhausted, match=str(info.free_memory_bytes)[:3]):
        await toolstack.create(spec("mute", memory=info.total_memory_bytes))
    wanted = spec("mute")
    domid = await toolstack.create(wanted)
    after = await toolstack.physical_info()
    assert info.free_memory_bytes - after.free_memory_bytes >= wanted.memory_bytes
    assert abs(info.total_memory_bytes - after.total_memory_bytes) < 8 * MIB
    assert [found.memory_bytes for found in await toolstack.list() if found.id == domid] == [96 * MIB]


async def test_memory_of_other_domains_is_not_for_zones(
    toolstack: LibxlToolstack, spec: MakeSpec, boot: Boot, context: Context
) -> None:
    before, held = await toolstack.physical_info(), await toolstack.memory()
    assert 2000 * MIB < held.dom0 < 3000 * MIB, "tests/xen/machine.py gives it 2560 MiB"
    stranger = replace(spec("mute", memory=200 * MIB), name="stranger")
    domid = domain.create_domain(context, domain_config(stranger, boot, "quiet"))
    after, holds = await toolstack.physical_info(), await toolstack.memory()
    assert before.total_memory_bytes - after.total_memory_bytes >= 200 * MIB
    assert 200 * MIB <= holds.domains[stranger.uuid] <= 220 * MIB
    assert 200 * MIB <= held.free - holds.free <= 220 * MIB
    domain.destroy(context, domid)


async def _gone(toolstack: LibxlToolstack, domid: DomainId) -> bool:
    return domid not in [info.id for info in await toolstack.list()]


async def _burns(toolstack: LibxlToolstack, wanted: DomainSpec, shares: CpuShares) -> UUID:
    domid = await toolstack.create(wanted)
    await toolstack.set_shares(domid, shares)
    await toolstack.unpause(domid)
    await until_console(toolstack, domid, b"up, burn", PATIENCE)
    return wanted.uuid


async def _used(toolstack: LibxlToolstack, *zones: UUID) -> list[int]:
    """CPU time of each by Xen's account, ns."""
    found = {info.uuid: info.cpu_time_ns for info in await toolstack.list()}
    return [found[zone] for zone in zones]


async def test_a_zone_of_many_vcpus_weighs_no_more(toolstack: LibxlToolstack, spec: MakeSpec) -> None:
    """A zone with a small request burns two vCPUs beside two zones that request a CPU and have a vCPU each.

    On a machine of two CPUs, a single honest zone would leave the other CPU to the hostile zone.
    """
    hostile = await _burns(toolstack, replace(spec("burn"), vcpus=2), CpuShares(26))
    honest = [await _burns(toolstack, spec("burn"), CpuShares(256)) for _ in range(2)]
    before = await _used(toolstack, *honest, hostile)
    used = [0, 0, 0]

    async def enough() -> bool:
        nonlocal used
        after = await _used(toolstack, *honest, hostile)
        used = [now - was for now, was in zip(after, before, strict=True)]
        return sum(used) > 8_000_000_000

    await until(enough, PATIENCE)
    assert sum(used[:2]) > 4 * used[2], used


async def test_a_cap_holds_while_cpus_are_idle(toolstack: LibxlToolstack, spec: MakeSpec) -> None:
    zone = await _burns(toolstack, spec("burn"), CpuShares(256, 20))
    (before,), begun = await _used(toolstack, zone), time.monotonic_ns()

    async def enough() -> bool:
        return (await _used(toolstack, zone))[0] - before > 1_000_000_000

    await until(enough, PATIENCE)
    (after,), ended = await _used(toolstack, zone), time.monotonic_ns()
    assert after - before < 0.3 * (ended - begun)


async def test_other_virtual_machines_are_left_alone(
    toolstack: LibxlToolstack, context: Context, boot: Boot, spec: MakeSpec
) -> None:
    """The list has other machines, and neither they nor their logs change."""
    theirs = replace(spec("mute"), name=f"database-{uuid4().hex[:12]}")
    domid = DomainId(domain.create_domain(context, domain_config(theirs, boot, "quiet")))
    log = LibxlSettings().console_dir / f"guest-{theirs.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(bytes(2 << 20))
    try:
        assert domid in [info.id for info in await toolstack.list()]
        await asyncio.to_thread(toolstack._logs.trim, toolstack._registry.names())
        assert log.stat().st_size >= 2 << 20
        for asked in (toolstack.unpause(domid), toolstack.disks(domid), toolstack.console(domid, 10)):
            with pytest.raises(DomainGone):
                await asked
        await toolstack.destroy(domid)
        assert domid in [info.id for info in await toolstack.list()]
        domain.destroy(context, domid)
        await until(lambda: _gone(toolstack, domid), PATIENCE)
        await toolstack.list()
        assert log.stat().st_size >= 2 << 20
    finally:
        log.unlink()
