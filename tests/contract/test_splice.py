"""The splice between namespaces: the address read from CNI's interface, and whole frames."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from pyroute2.netlink import nlmsg
from pyroute2.netlink.rtnl import (
    RTM_GETADDR,
    RTM_GETROUTE,
    RTM_GETTFILTER,
    RTM_NEWLINK,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
)

from daemonkit.faults import Missing
from protect.model.zone import GuestRoute
from protect.network import links
from protect.network.namespace import in_namespace
from protect.network.netlink import Netlink
from protect.network.splice import move_interface, splice
from tests.support.protect.pod_network import MTU, PodNetwork, run
from tests.support.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


class Guest:
    """A namespace instead of a zone: the peer of eth0 is ``name``, in the host's namespace."""

    def __init__(self) -> None:
        tag = uuid4().hex[:8]
        self.name = f"xpt{tag}"
        self.namespace = f"xpt-zone-{tag}"

    def __enter__(self) -> Guest:
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        return self

    def __exit__(self, *exc: object) -> None:
        run("ip", "netns", "del", self.namespace, check=False)
        run("ip", "link", "del", self.name, check=False)

    def ip(self, command: str) -> str:
        return run("ip", "-n", self.namespace, *command.split()).stdout

    def take(self, mac: bytes) -> None:
        """Take the pod's MAC and addresses."""
        self.ip(f"link set eth0 address {mac.hex(':')} mtu {MTU} up")
        self.ip("addr add 10.77.0.5/24 dev eth0")
        self.ip("addr add fd77::5/64 dev eth0 nodad")


@pytest.fixture
def guest() -> Iterator[Guest]:
    with Guest() as guest:
        yield guest


async def test_routes_come_in_a_working_order(pod_network: PodNetwork, guest: Guest) -> None:
    """As calico (a gateway by a link route), and with onlink and IPv6 routes."""
    for command in (
        "route del default",
        "route add 169.254.1.1 dev eth0 scope link",
        "route add default via 169.254.1.1 dev eth0",
        "route add 10.99.0.0/16 via 10.5.5.5 dev eth0 onlink",
        "route add blackhole 10.98.0.0/16",
        "-6 route add fd99::/48 via fd77::9",
        "link add other type veth peer name otherpeer",
        "link set other up",
        "route add 10.97.0.0/16 dev other",
    ):
        pod_network.ip("pod", command)
    found = await splice(guest.name, pod_network.path, "eth0")
    assert set(found.routes) == {
        GuestRoute("169.254.1.1/32", ""),
        GuestRoute("0.0.0.0/0", "169.254.1.1"),
        GuestRoute("10.5.5.5/32", ""),
        GuestRoute("10.99.0.0/16", "10.5.5.5"),
        GuestRoute("fd99::/48", "fd77::9"),
        GuestRoute("::/0", "fd77::1"),
    }
    gateways = [route.gateway != "" for route in found.routes]
    assert gateways == sorted(gateways), "a gateway comes before the route that reaches it"
    assert found.mtu == MTU and found.addresses == ("10.77.0.5/24", "fd77::5/64")
    assert found.mac.hex(":") in pod_network.ip("pod", "link show eth0")


async def test_routes_beyond_a_single_part_of_an_answer_are_read(
    pod_network: PodNetwork, guest: Guest, tmp_path: Path
) -> None:
    wanted = {GuestRoute(f"10.{n // 256}.{n % 256}.0/24", "10.77.0.9") for n in range(2000)}
    batch = tmp_path / "routes"
    batch.write_text("".join(f"route add {route.destination} via {route.gateway}\n" for route in wanted))
    pod_network.ip("pod", f"-batch {batch}")
    found = await splice(guest.name, pod_network.path, "eth0")
    assert set(found.routes) == wanted | {GuestRoute("0.0.0.0/0", "10.77.0.1"), GuestRoute("::/0", "fd77::1")}


async def test_the_kernel_is_asked_for_little(
    pod_network: PodNetwork, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request takes 0.1 to 0.5 ms of CPU, and a pod waits for each."""
    await move_interface(guest.name, pod_network.path)  # both toolstacks splice a pod in this state
    asked: list[int] = []
    encode = nlmsg.encode

    def counted(message: nlmsg) -> None:
        if message.header is not None:  # not a part of a message
            asked.append(message["header"]["type"])
        encode(message)

    monkeypatch.setattr(nlmsg, "encode", counted)
    looks = [RTM_GETADDR, RTM_GETROUTE, RTM_NEWLINK]
    await splice(guest.name, pod_network.path, "eth0")
    assert asked == looks + 2 * [RTM_NEWQDISC, RTM_NEWTFILTER]
    asked.clear()
    await splice(guest.name, pod_network.path, "eth0")
    assert asked == looks + 2 * [RTM_NEWQDISC, RTM_GETTFILTER]


async def test_splice_keeps_addresses_and_routes_for_cni_check(pod_network: PodNetwork, guest: Guest) -> None:
    before = pod_network.ip("pod", "-br addr show eth0"), pod_network.ip("pod", "route show")
    await splice(guest.name, pod_network.path, "eth0")
    assert (pod_network.ip("pod", "-br addr show eth0"), pod_network.ip("pod", "route show")) == before


async def test_a_repeated_splice_does_not_break_connections(pod_network: PodNetwork, guest: Guest) -> None:
    """The namespace's own stack must never see the guest's frames: the stack would reset connections."""
    guest.take((await splice(guest.name, pod_network.path, "eth0")).mac)
    again = 0
    while again <= 3:  # one transfer, unless the machine transfers faster than it splices
        transfer = asyncio.create_task(asyncio.to_thread(_transfer, guest, pod_network, 200_000_000))
        while not transfer.done():
            await splice(guest.name, pod_network.path, "eth0")
            again += 1
        assert await transfer == 200_000_000


SERVER = """
import socket, sys
with socket.create_server(("10.77.0.5", 7777)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    connection.settimeout(60)
    total = 0
    while data := connection.recv(1 << 20):
        total += len(data)
    print(total, flush=True)
"""
CLIENT = """
import socket, sys
with socket.create_connection(("10.77.0.5", 7777), timeout=60) as connection:
    left = int(sys.argv[1])
    while left:
        part = min(left, 1 << 20)
        connection.sendall(bytes(part))
        left -= part
"""


def _transfer(guest: Guest, network: PodNetwork, size: int) -> int:
    """``size`` bytes by TCP from the peer to the guest; how many arrived."""
    command = ["ip", "netns", "exec", guest.namespace, sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "listening\n"
        client = network.execute("peer", sys.executable, "-c", CLIENT, str(size))
        assert client.returncode == 0, client.stderr
        return int(server.stdout.readline())


async def test_both_protocols_and_full_frames(pod_network: PodNetwork, guest: Guest) -> None:
    guest.take((await splice(guest.name, pod_network.path, "eth0")).mac)
    for address in ("10.77.0.5", "fd77::5"):
        assert pod_network.ping(address)
    done = pod_network.execute(
        "peer", "ping", "-q", "-c1", "-W30", "-M", "do", "-s", str(MTU - 28), "10.77.0.5"
    )
    assert done.returncode == 0, "a frame of the whole MTU does not pass"


async def test_the_namespaces_own_stack_is_silent(pod_network: PodNetwork, guest: Guest) -> None:
    """No guest is up: an answer now would come from the pod's namespace."""
    assert pod_network.ping("10.77.0.5", 1) and pod_network.ping("fd77::5", 1)
    await splice(guest.name, pod_network.path, "eth0")
    for family in ("-4", "-6"):
        run("ip", "-n", pod_network.peer, family, "neigh", "flush", "dev", "pod0")
    assert not any(pod_network.ping(address, 1, patience=1) for address in ("10.77.0.5", "fd77::5"))
    neighbours = pod_network.ip("peer", "neigh show 10.77.0.5")
    assert "FAILED" in neighbours or "INCOMPLETE" in neighbours, "something answers ARP for the guest"
    assert "inet6" not in pod_network.ip("pod", f"addr show {guest.name}")


async def test_a_link_local_address_is_the_guests_alone(pod_network: PodNetwork, guest: Guest) -> None:
    """Two stacks with one MAC would announce one address, each to every pod of the bridge."""
    pod_network.ip("pod", "-6 route del default")
    pod_network.ip("pod", "-6 addr flush dev eth0 scope global")
    assert "fe80:" in pod_network.ip("pod", "-6 addr show eth0")
    for _ in range(2):
        found = await splice(guest.name, pod_network.path, "eth0")
        assert found.addresses == ("10.77.0.5/24",)
        assert "inet6" not in pod_network.ip("pod", "addr show eth0")


async def test_a_redirect_to_something_gone_is_replaced(pod_network: PodNetwork, guest: Guest) -> None:
    await splice(guest.name, pod_network.path, "eth0")
    with Guest() as second:
        run("ip", "netns", "del", guest.namespace)
        await _gone(pod_network, guest.name)
        second.take((await splice(second.name, pod_network.path, "eth0")).mac)
        assert pod_network.ping("10.77.0.5")


async def _gone(network: PodNetwork, name: str) -> None:
    await until(lambda: name not in network.interfaces())


async def test_an_interface_is_brought_early(pod_network: PodNetwork, guest: Guest) -> None:
    await move_interface(guest.name, pod_network.path)
    await move_interface(guest.name, pod_network.path)
    assert guest.name in pod_network.interfaces()
    guest.take((await splice(guest.name, pod_network.path, "eth0")).mac)
    assert pod_network.ping("10.77.0.5")


async def test_path_of_another_kind_than_a_namespace_is_refused(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Missing):
        await splice(guest.name, str(tmp_path / "file"), "eth0")
    with pytest.raises(Missing):
        await splice(guest.name, str(tmp_path / "nothing"), "eth0")


async def test_a_missing_interface_is_an_error(pod_network: PodNetwork, guest: Guest) -> None:
    with pytest.raises(Missing, match="eth9"):
        await splice(guest.name, pod_network.path, "eth9")
    assert guest.name in os.listdir("/sys/class/net"), "it moved although nothing waits for it"
    with pytest.raises(Missing, match="xp-nowhere"):
        await splice("xp-nowhere", pod_network.path, "eth0")
    with pytest.raises(Missing, match="xp-nowhere"):
        await move_interface("xp-nowhere", pod_network.path)
    with pytest.raises(Missing, match="a-name-too-long-for-any"):
        await splice(guest.name, pod_network.path, "a-name-too-long-for-any")


async def test_an_interface_removed_midway_is_an_error(
    pod_network: PodNetwork, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_program = links.add_program

    def too_late(netlink: Netlink, index: int, name: str, program: int) -> None:
        pod_network.ip("pod", f"link del {guest.name}")
        add_program(netlink, index, name, program)

    monkeypatch.setattr(links, "add_program", too_late)
    with pytest.raises(Missing, match=guest.name):
        await splice(guest.name, pod_network.path, "eth0")


async def test_no_thread_is_left_in_another_namespace(pod_network: PodNetwork, guest: Guest) -> None:
    own = os.readlink("/proc/self/ns/net")
    await asyncio.gather(*(splice(guest.name, pod_network.path, "eth0") for _ in range(20)))
    seen = await in_namespace(pod_network.path, lambda netlink: os.readlink("/proc/thread-self/ns/net"))
    assert seen != own
    # Python forgets a thread a moment before the kernel does.
    await until(lambda: not _in_threads() and _namespaces() == {own})


def _in_threads() -> bool:
    return any(thread.name == "netlink" for thread in threading.enumerate())


def _namespaces() -> set[str]:
    """The network namespaces of this process's threads."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the transfer has just ended
            found.add(os.readlink(f"/proc/self/task/{task}/ns/net"))
    return found


async def test_a_cancelled_caller_waits_for_the_work(pod_network: PodNetwork) -> None:
    done = threading.Event()
    begun = threading.Event()

    def work(netlink: object) -> None:
        begun.set()
        done.wait(60)
        ended.set()

    ended = threading.Event()
    calling = asyncio.create_task(in_namespace(pod_network.path, work))
    assert await asyncio.to_thread(begun.wait, 60)
    for _ in range(3):
        calling.cancel()
        await asyncio.sleep(0)
    assert not calling.done(), "the caller is told of the cancellation while the work goes on"
    done.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()
