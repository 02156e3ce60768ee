"""Epochs and transports over rings in memory: order, ends, cancellation."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from protect.channel.link import Link
from protect.model.errors import ProtocolViolation
from protect.toolstack.libxl import channel
from protect.toolstack.libxl.capacity.rings import CHANNEL_ORDER
from protect.toolstack.libxl.channel import VchanChannels
from protect.toolstack.libxl.transport import VchanTransport
from tests.support.agent.link_owner import Owner
from tests.support.waiting import until
from xenbind.errors import RingsTooLarge


class Ring:
    """A VchanClient of xenbind.vchan over a socket pair: the test is the guest at ``guest``."""

    def __init__(self) -> None:
        ours, self.guest = socket.socketpair()
        self._read, self._write = ours, ours
        self._event = ours.dup()
        self.fd = self._event.fileno()
        self.space = 1 << 20
        self.closed = False
        self.consumed = 0
        for end in (ours, self.guest):
            end.setblocking(False)

    def consume(self) -> None:
        """The socket stays readable while bytes are left, as after another notification of the guest."""
        self.consumed += 1

    def read_into(self, buffer: memoryview) -> int | None:
        try:
            return self._read.recv_into(buffer) or None
        except BlockingIOError:
            return 0

    def write(self, data: memoryview) -> int | None:
        count = min(self.space, len(data))
        self.space -= count
        return self._write.send(data[:count]) if count else 0

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self._event.close()
        self._read.close()


@pytest.fixture
async def ring() -> AsyncIterator[Ring]:
    ring = Ring()
    yield ring
    ring.guest.close()
    if not ring.closed:
        ring.close()


async def settled() -> None:
    """All work without new input is done; a stalled process has slept long, too."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_bytes_come_and_go(ring: Ring) -> None:
    transport = VchanTransport(ring)  # type: ignore[arg-type]
    reading = asyncio.create_task(transport.read(3))
    await asyncio.sleep(0)
    ring.guest.send(b"hello")
    assert await reading == b"hel"
    assert await transport.read(100) == b"lo"
    await transport.write(b"abc")
    assert ring.guest.recv(10) == b"abc"
    ring.guest.close()
    assert await transport.read(100) == b""


async def test_a_writer_waits_for_room(ring: Ring) -> None:
    ring.space = 2
    transport = VchanTransport(ring)  # type: ignore[arg-type]
    writing = asyncio.create_task(transport.write(b"abcd"))
    await settled()
    assert not writing.done() and ring.guest.recv(10) == b"ab"
    ring.space = 10
    ring.guest.send(b"!")  # the event for new room
    await writing
    assert ring.guest.recv(10) == b"cd"


async def test_last_bytes_of_a_dead_guest_can_be_read(ring: Ring) -> None:
    transport = VchanTransport(ring)  # type: ignore[arg-type]
    ring.guest.send(b"last words")
    transport.ended()
    assert await transport.read(4) == b"last"
    assert await transport.read(100) == b" words"
    assert await transport.read(100) == b""
    with pytest.raises(ConnectionError):
        await transport.write(b"x")


@pytest.mark.parametrize("end", ["ended", "disconnect"])
async def test_an_end_wakes_all_who_wait(ring: Ring, end: str) -> None:
    ring.space = 0
    transport = VchanTransport(ring)  # type: ignore[arg-type]
    reading, writing = asyncio.create_task(transport.read(1)), asyncio.create_task(transport.write(b"x"))
    await asyncio.sleep(0.01)
    getattr(transport, end)()
    assert await reading == b""
    with pytest.raises(ConnectionError):
        await writing
    await transport.close()
    await transport.close()
    assert ring.closed


async def test_a_cancelled_read_loses_nothing(ring: Ring) -> None:
    transport = VchanTransport(ring)  # type: ignore[arg-type]
    for _ in range(3):
        reading = asyncio.create_task(transport.read(10))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    ring.guest.send(b"x")
    assert await transport.read(10) == b"x"


async def test_a_guest_with_endless_notifications_is_heard_once_a_turn(ring: Ring) -> None:
    """Its zone's turn may come late, and until the turn the loop has no work for the guest."""
    transport = VchanTransport(ring)  # type: ignore[arg-type]
    reading = transport.read(10)
    woken = reading.send(None)
    ring.guest.send(b"x")
    await settled()
    assert woken.done()
    assert ring.consumed == 1
    with pytest.raises(StopIteration) as end:
        reading.send(None)
    assert end.value.value == b"x"
    transport.disconnect()


class MemoryStore:
    """The parts of xenstore that channels use."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self._watches: list[tuple[str, asyncio.Event]] = []

    def set(self, name: str, value: bytes) -> None:
        path = f"/local/domain/7/data/{name}"
        self.nodes[path] = value
        for watched, event in self._watches:
            if watched == path:
                event.set()

    async def read(self, path: str) -> bytes | None:
        await asyncio.sleep(0)
        return self.nodes.get(path)

    async def write_below(self, node: str, name: str, value: str) -> None:
        await asyncio.sleep(0)
        self.nodes[f"{node}/{name}"] = value.encode()

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[asyncio.Event]:
        watch = (path, asyncio.Event())
        watch[1].set()
        self._watches.append(watch)
        try:
            yield watch[1]
        finally:
            self._watches.remove(watch)


class Guest:
    """Serves rings by path, each to one client; a connect to an unserved path fails."""

    def __init__(self) -> None:
        self.served: dict[str, Ring] = {}
        self.larger: set[str] = set()
        self.asked: list[str] = []

    def serve(self, epoch: int) -> Ring:
        return self.served.setdefault(f"/local/domain/7/data/agent/{epoch}", Ring())

    def client(self, domid: int, path: str, most_order: int) -> Ring:
        self.asked.append(path.rsplit("/", 1)[1])
        assert most_order == CHANNEL_ORDER
        if path in self.larger:
            raise RingsTooLarge(errno.EMSGSIZE, "a ring of 131072 bytes", path)
        if path not in self.served or self.served[path].closed:
            raise FileNotFoundError(2, os.strerror(2), path)
        return self.served[path]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> Guest:
    guest = Guest()
    monkeypatch.setattr(channel, "VchanClient", guest.client)
    return guest


@pytest.fixture
async def channels(store: MemoryStore) -> AsyncIterator[VchanChannels]:
    channels = VchanChannels(store, 0.05)  # type: ignore[arg-type]
    yield channels
    channels.close()


async def test_an_epoch_is_claimed_and_connected_once(
    channels: VchanChannels, store: MemoryStore, guest: Guest
) -> None:
    connecting = asyncio.create_task(channels.connect(7))
    await asyncio.sleep(0.01)
    assert not connecting.done()
    first = guest.serve(1)
    store.set("agent-epoch", b"1")
    await connecting
    assert store.nodes["/local/domain/7/data/agent-used"] == b"1"
    second = asyncio.create_task(channels.connect(7))
    await settled()
    assert first.closed and not second.done(), "the old connection goes, its ring is not used again"
    guest.serve(2)
    store.set("agent-epoch", b"2")
    await second
    assert guest.asked == ["1", "2"]


@pytest.mark.parametrize("untrusted", [b"", b"0", b"-1", b"01", b"1x", b"1" * 10, b"\xff", b" 1"])
async def test_invalid_epoch_is_ignored(
    channels: VchanChannels, store: MemoryStore, guest: Guest, untrusted: bytes
) -> None:
    store.set("agent-epoch", untrusted)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(channels.connect(7), 0.02)
    assert guest.asked == []


async def test_an_epoch_without_a_ring_is_passed_over(
    channels: VchanChannels, store: MemoryStore, guest: Guest
) -> None:
    store.set("agent-epoch", b"1")
    connecting = asyncio.create_task(channels.connect(7))
    await asyncio.sleep(0.01)
    guest.serve(2)
    store.set("agent-epoch", b"2")
    await connecting


async def test_used_epoch_written_by_the_guest_does_not_count(
    channels: VchanChannels, store: MemoryStore, guest: Guest
) -> None:
    guest.serve(1)
    store.set("agent-epoch", b"1")
    await channels.connect(7)
    store.set("agent-used", b"0")  # else the old ring would be read again
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(channels.connect(7), 0.02)
    assert guest.asked == ["1"]


async def test_an_abandoned_epoch_is_knocked_at(
    channels: VchanChannels, store: MemoryStore, guest: Guest
) -> None:
    """After a killed daemon: the agent sees the end of a client, and serves the next."""
    abandoned = guest.serve(1)
    store.set("agent-epoch", b"1")
    store.set("agent-used", b"1")
    connecting = asyncio.create_task(channels.connect(7))
    await until(lambda: abandoned.closed)
    guest.serve(2)
    store.set("agent-epoch", b"2")
    await connecting
    assert guest.asked[0] == "1" and guest.asked[-1] == "2"


async def test_a_dead_domain_ends_its_connection(
    channels: VchanChannels, store: MemoryStore, guest: Guest
) -> None:
    ring = guest.serve(1)
    store.set("agent-epoch", b"1")
    transport = await channels.connect(7)
    ring.guest.send(b"x")
    channels.ended(7)
    assert await transport.read(10) == b"x"
    assert await transport.read(10) == b""
    channels.forget(7)
    assert ring.closed
    channels.ended(7)


async def test_a_guest_without_a_ring_is_asked_less_and_less(
    channels: VchanChannels, store: MemoryStore, guest: Guest, caplog: pytest.LogCaptureFixture
) -> None:
    """Hundreds of tries a second, each a line of the log, came of a guest that only counts upwards."""
    connecting = asyncio.create_task(channels.connect(7))
    for epoch in range(1, 2001):
        store.set("agent-epoch", str(epoch).encode())
        await settled()
    assert 1 <= len(guest.asked) < 100
    assert sum(record.levelno >= logging.WARNING for record in caplog.records) == 1
    guest.serve(2001)
    store.set("agent-epoch", b"2001")
    await connecting
    assert guest.asked[-1] == "2001"


@pytest.mark.parametrize("used", [False, True])
async def test_larger_rings_are_a_violation_and_cut_the_guest_off_for_good(
    channels: VchanChannels, store: MemoryStore, guest: Guest, used: bool
) -> None:
    """Also in an epoch claimed by a killed daemon."""
    guest.larger.add("/local/domain/7/data/agent/1")
    store.set("agent-epoch", b"1")
    store.set("agent-used", b"1" if used else b"0")
    owner = Owner()
    link = Link("bad", functools.partial(channels.connect, 7), owner)
    with pytest.raises(ProtocolViolation, match="a ring of 131072 bytes"):
        await link.open(60)
    guest.serve(2)
    store.set("agent-epoch", b"2")
    await settled()
    assert owner.violations == ["a ring of 131072 bytes"] and guest.asked == ["1"]
    await link.close()
