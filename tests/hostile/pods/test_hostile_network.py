"""A zone that sends with foreign addresses, or looks at foreign frames."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import pytest

from protect.network.guest_frames import link_local
from protect.network.namespace import in_own_thread
from protect.network.splice import splice
from tests.contract.test_splice import Guest
from tests.support.protect.pod_network import PodNetwork

pytestmark = pytest.mark.root
T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_ALL = socket.htons(3)
OTHER_MAC = bytes.fromhex("02aabbccddee")
OURS, THEIRS = "10.77.0.5", "10.77.0.6"
OURS6, THEIRS6 = "fd77::5", "fd77::6"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Wire:
    """Sockets for all frames: at the zone's interface, and at the other end of the pod's interface."""

    zone: socket.socket
    node: socket.socket
    mac: bytes
    node_mac: bytes
    dropped: Callable[[], int]
    """How many frames of the zone have been dropped."""

    async def out(self, frame: bytes) -> bool:
        """Whether a frame of the zone reaches the node."""
        return await self._passes(self.zone, self.node, frame, self._own())

    async def into(self, frame: bytes) -> bool:
        """Whether a frame of the node reaches the zone."""
        return await self._passes(
            self.node, self.zone, frame, ether(b"\xff" * 6, self.node_mac, b"\x08\x06", b"")
        )

    def _own(self) -> bytes:
        return ether(b"\xff" * 6, self.mac, b"\x08\x06", arp(1, self.mac, OURS, "10.77.0.1"))

    async def _passes(self, source: socket.socket, target: socket.socket, frame: bytes, last: bytes) -> bool:
        """Whether a frame passes: once ``last`` has come, it has come before, or was dropped."""
        marked = frame.ljust(80, b"\0") + os.urandom(8)
        last = last.ljust(80, b"\0") + os.urandom(8)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(source, marked)
        await loop.sock_sendall(source, last)
        seen = False
        async with asyncio.timeout(60):
            while (got := await loop.sock_recv(target, 4096)) != last:
                seen |= got == marked
        return seen


@pytest.fixture
async def wire(request: pytest.FixtureRequest, pod_network: PodNetwork) -> AsyncIterator[Wire]:
    """A spliced zone, with the spoof check unless the test's parameter is False."""
    async with spliced(pod_network, spoof_check=getattr(request, "param", True)) as made:
        yield made


@asynccontextmanager
async def spliced(pod_network: PodNetwork, *, spoof_check: bool = True) -> AsyncIterator[Wire]:
    """Splice a zone to the pod's present network."""
    with Guest() as guest:
        found = await splice(guest.name, pod_network.path, "eth0", spoof_check=spoof_check)
        guest.take(found.mac)
        node_mac = pod_network.execute("peer", "cat", "/sys/class/net/pod0/address").stdout
        zone = await _inside(f"/run/netns/{guest.namespace}", lambda: _packets("eth0"))
        node = await _inside(f"/run/netns/{pod_network.peer}", lambda: _packets("pod0"))
        with zone, node:
            mac = bytes.fromhex(node_mac.strip().replace(":", ""))
            yield Wire(zone, node, found.mac, mac, lambda: _dropped(pod_network, guest.name))


def _dropped(network: PodNetwork, interface: str) -> int:
    shown = network.execute("pod", "tc", "-s", "-j", "qdisc", "show", "dev", interface, "ingress").stdout
    return int(json.loads(shown)[0]["drops"])


async def _inside(netns: str, work: Callable[[], T]) -> T:
    def enter() -> T:
        descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            assert _libc.setns(descriptor, _CLONE_NEWNET) == 0
        finally:
            os.close(descriptor)
        return work()

    return await in_own_thread(enter)


def _packets(interface: str) -> socket.socket:
    """A socket that gets all frames of an interface, in promiscuous mode."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _ALL)
    opened.bind((interface, 3))
    membership = struct.pack("iHH8s", socket.if_nametoindex(interface), 1, 0, b"")  # PACKET_MR_PROMISC
    opened.setsockopt(263, 1, membership)  # SOL_PACKET, PACKET_ADD_MEMBERSHIP
    return opened


def ether(destination: bytes, source: bytes, kind: bytes, payload: bytes) -> bytes:
    return destination + source + kind + payload


def ip(source: str) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, 0, 40, 0, 0, 64, 17, 0)
    return head + socket.inet_aton(source) + socket.inet_aton("10.77.0.1") + bytes(20)


def arp(operation: int, mac: bytes, source: str, target: str) -> bytes:
    head = struct.pack(">HHBBH", 1, 0x0800, 6, 4, operation)
    return head + mac + socket.inet_aton(source) + bytes(6) + socket.inet_aton(target)


def ip6(source: str | bytes, following: int = 17, payload: bytes = bytes(24)) -> bytes:
    packed = source if isinstance(source, bytes) else socket.inet_pton(socket.AF_INET6, source)
    head = struct.pack(">IHBB", 6 << 28, len(payload), following, 255)
    return head + packed + socket.inet_pton(socket.AF_INET6, "ff02::1") + payload


def neighbour(kind: int, target: str) -> bytes:
    """An ICMPv6 message of neighbour discovery about an address."""
    return struct.pack(">BBHI", kind, 0, 0, 0) + socket.inet_pton(socket.AF_INET6, target)


def behind(extensions: bytes, following: int, payload: bytes) -> bytes:
    """A payload behind extension headers of 8 bytes, by their numbers."""
    for number in reversed(extensions):
        payload = bytes([following, 0]) + bytes(6) + payload
        following = number
    return payload


def fragment(following: int, payload: bytes, *, offset: int = 0) -> bytes:
    return struct.pack(">BBHI", following, 0, offset << 3 | 1, 7) + payload


def hidden(source: str | bytes, extensions: bytes, message: bytes) -> bytes:
    """A message of ICMPv6 behind extension headers."""
    return ip6(source, extensions[0], behind(extensions, 58, message))


def _behind_extensions(mac: bytes) -> dict[str, tuple[bool, bytes]]:
    """Packets whose headers hide their payload; and whether each may pass."""
    options, hops, routing = b"\x3c", b"\x00", b"\x2b"
    taken, router = neighbour(136, THEIRS6), neighbour(134, "::")
    local = link_local(mac)
    long = bytes([58, 2]) + bytes(22)
    query = bytes([130, 0, 0, 0]) + bytes(20)
    report = bytes([143, 0, 0, 0]) + bytes(4)
    packets = {
        "a datagram": (True, ip6(OURS6, 60, behind(options, 17, bytes(24)))),
        "a fragment": (True, ip6(OURS6, 44, fragment(17, bytes(24)))),
        "a later fragment": (True, ip6(OURS6, 44, fragment(58, bytes(24), offset=3))),
        "a fragment of an echo": (True, ip6(OURS6, 44, fragment(58, neighbour(128, "::")))),
        "a group that is joined": (True, hidden(local, hops, report)),
        "a group that nobody joins yet": (True, hidden("::", hops, report)),
        "I have it": (True, hidden(OURS6, options, neighbour(136, OURS6))),
        "I have another's, by options": (False, hidden(OURS6, options, taken)),
        "I have another's, by hop": (False, hidden(OURS6, hops, taken)),
        "I have another's, by routing": (False, hidden(OURS6, routing, taken)),
        "I have another's, behind four": (False, hidden(OURS6, hops + routing + options * 2, taken)),
        "I have another's, behind five": (False, hidden(OURS6, hops + routing + options * 3, taken)),
        "I have another's, behind a long one": (False, ip6(OURS6, 60, long + taken)),
        "I have another's, behind one that ends nowhere": (
            False,
            ip6(OURS6, 60, bytes([58, 255]) + bytes(6) + taken),
        ),
        "I have another's, in a fragment": (False, ip6(OURS6, 44, fragment(58, taken))),
        "I have another's, in a fragment's options": (
            False,
            ip6(OURS6, 44, fragment(60, behind(options, 58, taken))),
        ),
        "nobody has another's": (False, hidden("::", hops, taken)),
        "nobody, far behind": (False, hidden("::", hops + options, report)),
        "nobody's fragment": (False, ip6("::", 44, fragment(17, bytes(24), offset=3))),
        "I am the router": (False, hidden(local, options, router)),
        "I am the router, in a fragment": (False, ip6(local, 44, fragment(58, router))),
        "I ask for all groups": (False, hidden(local, hops, query)),
    }
    return {
        name: (may, ether(b"\xff" * 6, mac, b"\x86\xdd", packet)) for name, (may, packet) in packets.items()
    }


def _from_zone(mac: bytes) -> dict[str, tuple[bool, bytes]]:
    """Frames of a zone by name, with their verdict."""
    every = b"\xff" * 6
    return {
        "IPv4": (True, ether(every, mac, b"\x08\x00", ip(OURS))),
        "IPv4 of another": (False, ether(every, mac, b"\x08\x00", ip(THEIRS))),
        "IPv4 of nobody": (False, ether(every, mac, b"\x08\x00", ip("0.0.0.0"))),
        "another's MAC": (False, ether(every, OTHER_MAC, b"\x08\x00", ip(OURS))),
        "ARP": (True, ether(every, mac, b"\x08\x06", arp(2, mac, OURS, "10.77.0.1"))),
        "a probe by ARP": (True, ether(every, mac, b"\x08\x06", arp(1, mac, "0.0.0.0", OURS))),
        "is another's taken, by ARP": (False, ether(every, mac, b"\x08\x06", arp(1, mac, "0.0.0.0", THEIRS))),
        "another's address by ARP": (False, ether(every, mac, b"\x08\x06", arp(2, mac, THEIRS, "10.77.0.1"))),
        "another's MAC in ARP": (False, ether(every, mac, b"\x08\x06", arp(2, OTHER_MAC, OURS, "10.77.0.1"))),
        "IPv6": (True, ether(every, mac, b"\x86\xdd", ip6(OURS6))),
        "IPv6 of another": (False, ether(every, mac, b"\x86\xdd", ip6(THEIRS6))),
        "link-local": (True, ether(every, mac, b"\x86\xdd", ip6(link_local(mac)))),
        "link-local of another": (False, ether(every, mac, b"\x86\xdd", ip6(link_local(OTHER_MAC)))),
        "is it taken": (True, ether(every, mac, b"\x86\xdd", ip6("::", 58, neighbour(135, OURS6)))),
        "is another's taken": (False, ether(every, mac, b"\x86\xdd", ip6("::", 58, neighbour(135, THEIRS6)))),
        "where is a router": (True, ether(every, mac, b"\x86\xdd", ip6("::", 58, neighbour(133, "::")))),
        "IPv6 of nobody": (False, ether(every, mac, b"\x86\xdd", ip6("::"))),
        "I have it": (True, ether(every, mac, b"\x86\xdd", ip6(OURS6, 58, neighbour(136, OURS6)))),
        "I have another's": (False, ether(every, mac, b"\x86\xdd", ip6(OURS6, 58, neighbour(136, THEIRS6)))),
        "I am the router": (
            False,
            ether(every, mac, b"\x86\xdd", ip6(link_local(mac), 58, neighbour(134, "::"))),
        ),
        "go that way": (False, ether(every, mac, b"\x86\xdd", ip6(OURS6, 58, neighbour(137, THEIRS6)))),
        "who has it": (True, ether(every, mac, b"\x86\xdd", ip6(OURS6, 58, neighbour(135, "fd77::1")))),
        "VLAN": (False, ether(every, mac, b"\x81\x00", b"\0\x05\x08\x00" + ip(OURS))),
        "spanning tree": (False, ether(bytes.fromhex("0180c2000000"), mac, b"\0\x26", b"\x42\x42\x03")),
        "LLDP": (False, ether(bytes.fromhex("0180c200000e"), mac, b"\x88\xcc", bytes(30))),
        "PPPoE": (False, ether(every, mac, b"\x88\x63", bytes(30))),
    }


async def test_a_zone_sends_with_its_own_addresses_alone(wire: Wire) -> None:
    passed = {name: await wire.out(frame) for name, (_, frame) in _from_zone(wire.mac).items()}
    assert passed == {name: may for name, (may, _) in _from_zone(wire.mac).items()}


async def test_extension_headers_hide_nothing(wire: Wire) -> None:
    """A neighbour follows the headers to the payload (RFC 7113)."""
    frames = _behind_extensions(wire.mac)
    passed = {name: await wire.out(frame) for name, (_, frame) in frames.items()}
    assert passed == {name: may for name, (may, _) in frames.items()}


async def test_zone_sees_only_frames_for_the_zone(wire: Wire) -> None:
    mine = ether(wire.mac, wire.node_mac, b"\x08\x00", ip("10.77.0.1"))
    every = ether(b"\xff" * 6, wire.node_mac, b"\x08\x06", arp(1, wire.node_mac, "10.77.0.1", OURS))
    group = ether(bytes.fromhex("333300000001"), wire.node_mac, b"\x86\xdd", ip6("fd77::1"))
    others = ether(OTHER_MAC, wire.node_mac, b"\x08\x00", ip("10.77.0.1"))
    assert [await wire.into(frame) for frame in (mine, every, group, others)] == [True, True, True, False]


@pytest.mark.parametrize("size", [14, 20, 33, 34, 41])
async def test_frames_too_short_for_a_check_are_dropped(wire: Wire, size: int) -> None:
    """Otherwise the kernel would give the frames to the host's own stack."""
    kind = b"\x08\x06" if size > 33 else b"\x08\x00"
    frame = ether(b"\xff" * 6, wire.mac, kind, arp(2, wire.mac, OURS, "10.77.0.1"))[:size]
    before = wire.dropped()
    await asyncio.get_running_loop().sock_sendall(wire.zone, frame)
    assert await wire.out(_from_zone(wire.mac)["IPv4"][1])
    assert wire.dropped() == before + 1


@pytest.mark.parametrize("wire", [False], indirect=True)
async def test_gateway_may_send_frames_forbidden_to_pods(wire: Wire) -> None:
    assert all([await wire.out(frame) for name, (_, frame) in _from_zone(wire.mac).items() if name != "VLAN"])
    assert await wire.into(ether(OTHER_MAC, wire.node_mac, b"\x08\x00", ip("10.77.0.1")))


async def test_a_pod_without_addresses_has_its_mac(pod_network: PodNetwork) -> None:
    """On a network where the pod finds an address by itself (DHCP)."""
    pod_network.ip("pod", "addr flush dev eth0")
    async with spliced(pod_network) as wire:
        frames = _from_zone(wire.mac)
        for name in ("IPv4 of another", "IPv4 of nobody"):
            assert await wire.out(frames[name][1])
        assert not await wire.out(frames["another's MAC"][1])


async def test_a_pod_without_ipv6_speaks_none(pod_network: PodNetwork) -> None:
    pod_network.ip("pod", "addr del fd77::5/64 dev eth0")
    pod_network.ip("pod", "-6 route flush dev eth0")
    async with spliced(pod_network) as wire:
        frames = _from_zone(wire.mac)
        assert await wire.out(frames["IPv4"][1])
        for name in ("link-local", "IPv6"):
            assert not await wire.out(frames[name][1])
