"""Joins a zone's interface to the one that CNI made for the pod, so that the zone is the pod's end.

The zone's host interface moves into the pod's network namespace, and whatever arrives at either of
the two is sent out at the other (tc: ingress qdisc, u32 match-all, mirred redirect).  The redirect
takes frames before the namespace's own stack sees them, so nothing there answers for the pod's
address, while the addresses stay on the CNI interface, where CNI CHECK and DEL expect them.

When a namespace is deleted, a veth in it is destroyed; a physical or Xen backend interface returns
to the initial namespace, and can be spliced again.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from daemonkit.faults import Broken, Missing
from protect.model.zone import GuestNetwork
from protect.network.guest import find_link, read_guest_network
from protect.network.namespace import OWN, enter, explain, in_own_thread, netlink_socket, opened

T = TypeVar("T")

_making = threading.Lock()
_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

_INGRESS = 0xFFFF0000
_PRIORITY = 1
_EVERY_PROTOCOL = 0x0003  # ETH_P_ALL
_MATCH_ALL = "0x0/0x0+0"
_CLASS = 0x10000  # u32 wants one; the redirect comes first


async def splice(host_interface: str, netns: str, interface: str) -> GuestNetwork:
    """Join the two; done already is fine.  What the guest has to set on its own interface.

    Missing: no such namespace, or an interface is in neither namespace; Broken: the kernel refused.
    """

    def work() -> GuestNetwork:
        with _lock_of(host_interface):
            return _splice(host_interface, netns, interface)

    return await _run(work, host_interface)


async def move_interface(host_interface: str, netns: str) -> None:
    """Move the host interface into the namespace; there already is fine.

    ``splice`` does that too.  Done earlier, nobody has to wait for it then: the kernel takes some RCU grace
    periods for it, tens of milliseconds.
    """

    def work() -> None:
        with _lock_of(host_interface), opened(netns) as target, netlink_socket() as here:
            enter(target, netns)
            with netlink_socket() as there:
                _move(here, there, host_interface, target)

    await _run(work, host_interface)


async def unsplice(host_interface: str, netns: str) -> None:
    """Move the host interface back out of the namespace; fine when it, or that, is gone."""

    def work() -> None:
        with _lock_of(host_interface):
            _unsplice(host_interface, netns)

    await _run(work, host_interface)


def _splice(host_interface: str, netns: str, interface: str) -> GuestNetwork:
    with opened(netns) as target, netlink_socket() as here:
        enter(target, netns)
        with netlink_socket() as there:
            guest = read_guest_network(there, interface)
            pods = _index(there, interface)
            zones = _move(here, there, host_interface, target)
            _configure(there, host_interface, zones, guest.mtu)
            _redirect(there, pods, zones)
            _redirect(there, zones, pods)
            return guest


def _move(here: IPRoute, there: IPRoute, name: str, target: int) -> int:
    """Move the interface into the namespace, unless it is there; its index there."""
    link = find_link(there, name)
    if link is not None:
        return int(link["index"])
    link = find_link(here, name)
    if link is None:
        hint = "was it in a network namespace that has been deleted?"
        raise Missing("splice interface", name, "no such interface", hint)
    here.link("set", index=link["index"], net_ns_fd=target)
    return _index(there, name)


def _configure(there: IPRoute, name: str, index: int, mtu: int) -> None:
    # The interface only passes frames on: the namespace's stack must not speak IPv6 on it.
    switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")  # of this thread's namespace
    if switch.exists():
        switch.write_text("1")
    there.link("set", index=index, mtu=mtu, state="up")


def _redirect(there: IPRoute, here: int, out: int) -> None:
    """Send what arrives at the interface ``here`` out at ``out``."""
    # A redirect in place stays untouched: without it for a moment, the namespace's own stack would
    # see segments of the guest's connections, and reset them.
    if out in _targets(there, here):
        return
    try:
        there.tc("add", "ingress", here, _INGRESS)
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise
        _clear(there, here)  # of an earlier splice, to something that is gone
        there.tc("add", "ingress", here, _INGRESS)
    action = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": out}
    there.tc(
        "add-filter",
        "u32",
        here,
        parent=_INGRESS,
        prio=_PRIORITY,
        protocol=_EVERY_PROTOCOL,
        keys=[_MATCH_ALL],
        target=_CLASS,
        action=action,
    )


def _targets(there: IPRoute, index: int) -> set[int]:
    """Interfaces that frames arriving at ``index`` are redirected to."""
    found = set()
    for message in there.get_filters(index=index, parent=_INGRESS):
        found |= set(_mirred_targets(message))
    return found


def _mirred_targets(message: Any) -> list[int]:
    options = message.get_attr("TCA_OPTIONS")
    actions = options.get_attr("TCA_U32_ACT") if options is not None else None
    if actions is None:
        return []
    found = []
    for _, action in actions["attrs"]:
        parameters = action.get_attr("TCA_ACT_OPTIONS").get_attr("TCA_MIRRED_PARMS")
        found.append(int(parameters["ifindex"]))
    return found


def _clear(there: IPRoute, index: int) -> None:
    try:
        there.tc("del", "ingress", index, _INGRESS)
    except NetlinkError as error:
        if error.code not in (errno.ENOENT, errno.EINVAL):  # there was none
            raise


def _index(netlink: IPRoute, name: str) -> int:
    link = find_link(netlink, name)
    if link is None:
        raise Missing("splice interface", name, "it went away meanwhile")
    return int(link["index"])


def _unsplice(host_interface: str, netns: str) -> None:
    with opened(OWN) as own:
        try:
            with opened(netns) as target:
                enter(target, netns)
        except Missing:
            return
        with netlink_socket() as there:
            link = find_link(there, host_interface)
            if link is not None:
                there.link("set", index=link["index"], state="down", net_ns_fd=own)


def _lock_of(interface: str) -> threading.Lock:
    """One piece of work at a time on an interface: its steps look before they act."""
    with _making:
        lock = _locks.get(interface)
        if lock is None:
            lock = _locks[interface] = threading.Lock()
        return lock


async def _run(work: Callable[[], T], interface: str) -> T:
    try:
        return await in_own_thread(work)
    except NetlinkError as error:
        raise Broken("splice interface", interface, explain(error)) from error
