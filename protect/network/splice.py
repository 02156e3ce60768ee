"""Joins a zone's interface to the interface that CNI made for the pod: the zone becomes the pod's end.

The zone's host interface moves into the pod's network namespace.  A frame that arrives at either interface
and passes the check leaves at the other (tc: ingress qdisc, one program of ``frames`` for each direction).
The programs take all frames before the namespace's own stack sees them: nothing in the namespace answers for
the pod's address.  The addresses stay on the CNI interface for CNI CHECK and DEL.

When a namespace is deleted, the kernel destroys its veth; a physical or Xen backend interface returns to the
initial namespace, and can be spliced again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from pyroute2.netlink.exceptions import NetlinkError

from daemonkit.faults import Broken, Missing
from protect.model.zone import GuestNetwork
from protect.network import guest_frames, links
from protect.network.bpf import Program
from protect.network.guest import read_guest_network
from protect.network.namespace import OWN, enter, explain, in_own_thread, opened
from protect.network.netlink import Netlink

T = TypeVar("T")

_making = threading.Lock()
_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


async def splice(
    host_interface: str, netns: str, interface: str, *, spoof_check: bool = True
) -> GuestNetwork:
    """Join the two interfaces; may be repeated.  Returns the guest's settings for its own interface.

    Without ``spoof_check`` frames from and to foreign addresses pass, too.  Missing: no such namespace, or an
    interface is in neither namespace; Broken: the kernel refused.
    """

    def work() -> GuestNetwork:
        with _lock_of(host_interface):
            return _splice(host_interface, netns, interface, spoof_check)

    return await _run(work, host_interface)


async def move_interface(host_interface: str, netns: str) -> None:
    """Move the host interface into the namespace, unless already there.

    ``splice`` also moves the interface.  But the move takes some RCU grace periods, tens of milliseconds: a
    move ahead of time saves the wait.
    """

    def work() -> None:
        with _lock_of(host_interface), opened(netns) as target:
            enter(target, netns)
            _move(host_interface, netns, target)

    await _run(work, host_interface)


def _splice(host_interface: str, netns: str, interface: str, spoof_check: bool) -> GuestNetwork:
    with opened(netns) as target:
        enter(target, netns)
        with Netlink() as there:
            pods = links.find_interface(interface)
            if pods is None:
                raise Missing("read interface", interface, "no such interface in the network namespace")
            guest = read_guest_network(there, pods)
            if not _has_ipv6(guest):
                _disable_ipv6(interface)
            zones = _move(host_interface, netns, target)
            _configure(there, host_interface, zones, pods.mtu)
            _decide(there, pods.index, guest_frames.to_zone(guest, zones, spoof_check=spoof_check))
            _decide(there, zones, guest_frames.from_zone(guest, pods.index, spoof_check=spoof_check))
            return guest


def _move(name: str, netns: str, target: int) -> int:
    """Move the interface into the thread's namespace, unless already there; returns its index."""
    index = links.index_of(name)
    if index is not None:
        return index
    with opened(OWN) as own:
        enter(own, OWN)
    with Netlink() as here:
        moved = links.move(here, name, target)
    if not moved:
        hint = "was it in a network namespace that has been deleted?"
        raise Missing("splice interface", name, "no such interface", hint)
    enter(target, netns)
    index = links.index_of(name)
    if index is None:
        raise Missing("splice interface", name, "it went away meanwhile")
    return index


def _configure(there: Netlink, name: str, index: int, mtu: int) -> None:
    _disable_ipv6(name)  # the interface only passes frames on
    links.set_up(there, index, mtu)


def _has_ipv6(guest: GuestNetwork) -> bool:
    """Whether CNI gave the pod an IPv6 address or route."""
    return any(":" in text for text in (*guest.addresses, *(route.destination for route in guest.routes)))


def _disable_ipv6(name: str) -> None:
    """Keep the namespace's own stack from speaking IPv6 on an interface.

    The stack would announce the guest's own link-local address, because both have the same MAC.  A bridge
    floods each announcement to all its pods: beside 500 other pods, one pod's frames cost the node 10 ms of
    CPU.
    """
    switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")  # in this thread's namespace
    with suppress(FileNotFoundError):
        switch.write_text("1")


def _decide(there: Netlink, here: int, program: Program) -> None:
    """Let the program decide about frames arriving at the interface ``here``."""
    name = f"xenpod-{hashlib.sha256(program.encoded()).hexdigest()[:32]}"
    if not links.add_ingress(there, here):
        # Keep a program already in place: without it for a moment, the namespace's own stack would see
        # segments of the guest's connections, and reset them.
        if links.programs(there, here) == [name]:
            return
        links.remove_ingress(there, here)  # an earlier splice, to a vanished interface
        links.add_ingress(there, here)
    descriptor = program.load()
    try:
        links.add_program(there, here, name, descriptor)
    finally:
        os.close(descriptor)


def _lock_of(interface: str) -> threading.Lock:
    """The lock of an interface, for work that checks before it acts."""
    with _making:
        lock = _locks.get(interface)
        if lock is None:
            lock = _locks[interface] = threading.Lock()
        return lock


async def _run(work: Callable[[], T], interface: str) -> T:
    try:
        return await in_own_thread(work)
    except NetlinkError as error:
        if error.code == errno.ENODEV:
            raise Missing("splice interface", interface, "it, or the pod's, went away meanwhile") from error
        raise Broken("splice interface", interface, explain(error)) from error
