"""A guest with a hostile agent, over real rings: frames and behaviour harm only the guest.

The guest (``replay`` in peer.c) sends the frames of ``tests/hostile``, as agents of the fake do.
"""

from __future__ import annotations

import asyncio
import struct
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemonkit.loop.fair_scheduler import FairScheduler
from daemonkit.loop.in_flight import InFlight
from protect.channel import frames
from protect.channel.frames import Frame, Type
from protect.channel.link import Link
from protect.model.errors import ProtocolViolation
from protect.model.toolstack import DiskSpec, DomainId
from protect.model.transport import Transport
from protect.toolstack.libxl.capacity import rings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from tests.support.agent.hostile_zone import ATTACKS
from tests.support.agent.link_owner import Owner
from tests.support.waiting import until
from tests.xen.inside.conftest import MakeSpec, grants
from tests.xen.machine import CHECKOUT
from xenpod_proto.channel.v1 import channel_pb2 as pb

PATIENCE = 240.0
SHARE = CHECKOUT / "zone/build/share"
STAY, HANG_UP, NOTIFY = range(3)
HELLO = frames.encode(
    Frame(Type.HELLO, 0, pb.Hello(version_min=1, version_max=1, boot_id=b"b" * 16).SerializeToString())
)
BROKEN = (
    "a reply to nothing",
    "a call",
    "a stream of its own",
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
"""Attacks of tests/support/agent/hostile_zone.py with a forbidden first frame."""
_EVENT = pb.Event(process_exited=pb.ProcessExited(process=pb.ProcessRef(container_id="none")))
EVENTS = frames.encode(Frame(Type.EVENT, 0, _EVENT.SerializeToString())) * 256


@dataclass(frozen=True, slots=True)
class Script:
    """The guest's script for a connection: send the bytes, then repeat the last part, or do ``then``."""

    first: bytes
    repeated: bytes = b""
    then: int = STAY

    def encode(self) -> bytes:
        sent = self.first + self.repeated
        return struct.pack("=III", len(sent), len(self.repeated), self.then) + sent


class _Recorder:
    """A connection that records an attack's frames."""

    def __init__(self) -> None:
        self.sent = b""

    def send(self, untrusted: bytes) -> None:
        self.sent += untrusted


def _attack(name: str) -> bytes:
    recorder = _Recorder()
    ATTACKS[name](recorder)  # type: ignore[arg-type]
    return recorder.sent


@asynccontextmanager
async def hostile(
    toolstack: LibxlToolstack, spec: MakeSpec, folder: Path, scripts: Sequence[Script]
) -> AsyncIterator[DomainId]:
    """A guest that runs the scripts in order, one for each connection, and then repeats the last script."""
    disk = folder / "scripts.img"
    content = struct.pack("=I", len(scripts)) + b"".join(script.encode() for script in scripts)
    disk.write_bytes(content.ljust(-(-len(content) // 4096) * 4096, b"\0"))
    domain = await toolstack.create(spec("replay"))
    await toolstack.attach_disk(domain, DiskSpec("xvda", disk))
    await toolstack.unpause(domain)
    yield domain
    await toolstack.destroy(domain)


class Honest:
    """A guest with an echo service, safe from other guests."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def answers(self) -> None:
        await self._transport.write(b"alive")
        received = b""
        while len(received) < 5:
            chunk = await asyncio.wait_for(self._transport.read(64), PATIENCE)
            assert chunk, "its channel has ended"
            received += chunk
        assert received == b"alive"


@pytest.fixture
async def honest(toolstack: LibxlToolstack, spec: MakeSpec) -> Honest:
    domain = await toolstack.create(spec("echo"))
    await toolstack.unpause(domain)
    return Honest(await asyncio.wait_for(toolstack.open_channel(domain), PATIENCE))


class Dialled:
    """Connects to a domain, and counts how often."""

    def __init__(self, toolstack: LibxlToolstack, domain: DomainId) -> None:
        self._toolstack, self._domain = toolstack, domain
        self.times = 0

    async def __call__(self) -> Transport:
        transport = await self._toolstack.open_channel(self._domain)
        self.times += 1
        return transport


async def test_every_broken_rule_cuts_the_guest_off(
    toolstack: LibxlToolstack, spec: MakeSpec, tmp_path: Path, honest: Honest
) -> None:
    scripts = [Script(HELLO + _attack(name)) for name in BROKEN]
    scripts += [Script(_attack("an unknown type")), Script(HELLO, EVENTS)]
    async with hostile(toolstack, spec, tmp_path, scripts) as domain:
        for name in (*BROKEN, "no greeting", "events without end"):
            owner = Owner()
            link = Link("bad", Dialled(toolstack, domain), owner)
            try:
                await link.open(PATIENCE)
            except ProtocolViolation:
                pass  # the domain is visible before the link is up
            await until(lambda owner=owner: owner.violations, PATIENCE)
            assert not link.connected, name
            await link.close()
            await honest.answers()


async def test_larger_rings_than_an_agent_s_cut_the_guest_off(
    toolstack: LibxlToolstack, spec: MakeSpec, honest: Honest
) -> None:
    """The guest picks the rings' size, up to 513 pages mapped by dom0: none stay mapped."""
    domain = await toolstack.create(spec("greedy"))
    await toolstack.unpause(domain)
    for _ in range(2):
        owner = Owner()
        link = Link("bad", Dialled(toolstack, domain), owner)
        with pytest.raises(ProtocolViolation, match="a ring of 1048576 bytes, at most 65536 are allowed"):
            await link.open(PATIENCE)
        assert len(owner.violations) == 1 and not link.connected
        await link.close()
        assert grants(domain) < rings.pages(rings.CHANNEL_ORDER)
        await honest.answers()
    await toolstack.destroy(domain)


async def test_a_file_server_ends_if_the_rings_are_larger_than_the_shared_directory_s(
    toolstack: LibxlToolstack, spec: MakeSpec, tmp_path: Path
) -> None:
    domain = await toolstack.create(spec("greedy"))
    await toolstack.unpause(domain)
    command = [str(SHARE), "--namespace", "/proc/self/ns/mnt", "--dir", str(tmp_path), "--session", "greedy"]
    command += ["--vchan", str(domain), "--ring-order", str(rings.SHARING_ORDER)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    log = tmp_path / "log"
    await until(log.read_text, PATIENCE)
    assert log.read_text().startswith("share: the zone broke the protocol: its rings are too large")
    assert grants(domain) < rings.pages(rings.SHARING_ORDER)
    await toolstack.destroy(domain)


@pytest.mark.parametrize("then", [STAY, HANG_UP, NOTIFY], ids=["half a frame", "reconnects", "notifies"])
async def test_a_guest_within_the_rules_takes_no_other_turn(
    toolstack: LibxlToolstack, spec: MakeSpec, tmp_path: Path, honest: Honest, then: int
) -> None:
    """The guest sends half a frame, hangs up at each connect, or notifies us without any bytes."""
    in_flight, owner = InFlight(), Owner()
    half = HELLO + frames.encode(Frame(Type.EVENT, 0, bytes(64)))[:20]
    async with hostile(
        toolstack, spec, tmp_path, [Script(half if then == STAY else HELLO, then=then)]
    ) as bad:
        dial = Dialled(toolstack, bad)
        link = Link("bad", dial, owner, FairScheduler(in_flight))
        opening = asyncio.create_task(link.open(PATIENCE))
        await until(lambda: not dial.times < 3 if then == HANG_UP else not owner.hellos, PATIENCE)
        with in_flight.call():
            for _ in range(50):
                await honest.answers()
        await link.close()
        await asyncio.gather(opening, return_exceptions=True)
        assert not owner.violations
