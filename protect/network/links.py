"""Interfaces, their addresses and routes, and redirects between them: each by one request of rtnetlink.

Sources: linux/if_link.h, linux/veth.h, linux/rtnetlink.h, linux/pkt_cls.h, linux/tc_act/tc_mirred.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from protect.network.netlink import (
    CREATE,
    EXCLUSIVE,
    Message,
    Netlink,
    NetlinkError,
    attribute,
    attributes_of,
    nested,
    number,
)

_NEWLINK, _DELLINK, _GETLINK, _GETADDR, _GETROUTE = 16, 17, 18, 22, 26
_NEWQDISC, _DELQDISC, _NEWTFILTER, _GETTFILTER = 36, 37, 44, 46
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 1, 3, 4, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFF_UP = 1
_ADDRESS = struct.Struct("=4BI")  # struct ifaddrmsg: family, prefix length, flags, scope, index
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_ROUTE = struct.Struct("=8BI")  # struct rtmsg: family, lengths of dst and src, tos, table, ... type, flags
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_MULTIPATH, _RTA_TABLE = 1, 4, 5, 9, 15
_HOP = struct.Struct("=HBBi")  # struct rtnexthop: length, flags, hops, interface
_TC = struct.Struct("=B3xiIII")  # struct tcmsg: family, interface, handle, parent, info
_TCA_KIND, _TCA_OPTIONS = 1, 2
_INGRESS, _INGRESS_PARENT = 0xFFFF0000, 0xFFFFFFF1
# Priority 1 and every protocol (ETH_P_ALL, in the order of the network).
_INFO = 1 << 16 | socket.htons(0x0003)
_U32_CLASS, _U32_SELECTOR, _U32_ACTION = 1, 5, 7
# struct tc_u32_sel with one key: terminal, and no bit of a frame is looked at.
_MATCH_ALL = struct.pack("=3BxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + struct.pack("=IIii", 0, 0, 0, 0)
_CLASS = 0x10000  # u32 wants one; the redirect comes first
_ACTION_KIND, _ACTION_OPTIONS, _MIRRED_PARAMETERS = 1, 2, 2
_MIRRED = struct.Struct("=2I3iiI")  # struct tc_mirred: ..., action, ..., what it does, interface
_STOLEN, _EGRESS_REDIRECT = 4, 1


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface."""

    index: int
    mac: bytes
    mtu: int


@dataclass(frozen=True, slots=True)
class Address:
    """An address of an interface; ``own`` is the one of this side where the link has two ends."""

    own: str
    prefix: int
    scope: int


@dataclass(frozen=True, slots=True)
class Hop:
    """One way of a route.  ``gateway`` is empty for a route on the link."""

    interface: int
    gateway: str
    flags: int


@dataclass(frozen=True, slots=True)
class Route:
    """A route; ``destination`` is empty for the default one."""

    destination: str
    length: int
    table: int
    protocol: int
    type: int
    hops: tuple[Hop, ...]


def find_link(netlink: Netlink, name: str) -> Interface | None:
    """The interface of that name, or None."""
    try:
        found = netlink.request(_GETLINK, _LINK, (0, 0, 0, 0, 0), attribute(_IFLA_IFNAME, name))
    except NetlinkError as error:
        if error.code == errno.ENODEV:
            return None
        raise
    (message,) = found
    has = message.attributes
    return Interface(_LINK.unpack(message.fixed)[2], has.get(_IFLA_ADDRESS, b""), number(has[_IFLA_MTU]))


def add_veth(netlink: Netlink, name: str, namespace: int, peer: str, peer_namespace: int) -> None:
    """Make a pair, each end in the namespace of its descriptor."""
    other = _LINK.pack(0, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, peer)
    other += attribute(_IFLA_NET_NS_FD, peer_namespace)
    kind = attribute(_INFO_KIND, "veth"), nested(_INFO_DATA, attribute(_VETH_PEER, other))
    wanted = attribute(_IFLA_IFNAME, name) + attribute(_IFLA_NET_NS_FD, namespace)
    wanted += nested(_IFLA_LINKINFO, *kind)
    netlink.request(_NEWLINK, _LINK, (0, 0, 0, 0, 0), wanted, CREATE | EXCLUSIVE)


def delete_link(netlink: Netlink, name: str) -> None:
    """Delete the interface of that name; none is fine."""
    try:
        netlink.request(_DELLINK, _LINK, (0, 0, 0, 0, 0), attribute(_IFLA_IFNAME, name))
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise


def move_link(netlink: Netlink, index: int, namespace: int) -> None:
    """Take an interface down, and move it into the namespace of a descriptor."""
    values = (0, 0, index, 0, _IFF_UP)
    netlink.request(_NEWLINK, _LINK, values, attribute(_IFLA_NET_NS_FD, namespace))


def set_up(netlink: Netlink, index: int, mtu: int) -> None:
    """Set an interface's MTU, and bring it up."""
    netlink.request(_NEWLINK, _LINK, (0, 0, index, _IFF_UP, _IFF_UP), attribute(_IFLA_MTU, mtu))


def addresses(netlink: Netlink, index: int) -> Iterator[Address]:
    """Of an interface."""
    for message in netlink.dump(_GETADDR, _ADDRESS, (0, 0, 0, 0, 0)):
        family, prefix, _, scope, interface = _ADDRESS.unpack(message.fixed)
        # On point-to-point links IFA_ADDRESS is the other side's.
        raw = message.attributes.get(_IFA_LOCAL) or message.attributes.get(_IFA_ADDRESS)
        if interface == index and raw:
            yield Address(socket.inet_ntop(family, raw), prefix, scope)


def routes(netlink: Netlink, family: int) -> Iterator[Route]:
    """Of all tables."""
    for message in netlink.dump(_GETROUTE, _ROUTE, (family, 0, 0, 0, 0, 0, 0, 0, 0)):
        _, length, _, _, table, protocol, _, kind, flags = _ROUTE.unpack(message.fixed)
        has = message.attributes
        yield Route(
            destination=_text(family, has.get(_RTA_DST)),
            length=length,
            table=number(has[_RTA_TABLE]) if _RTA_TABLE in has else table,
            protocol=protocol,
            type=kind,
            hops=tuple(_hops(family, message, flags)),
        )


def _hops(family: int, message: Message, flags: int) -> Iterator[Hop]:
    has = message.attributes
    if _RTA_OIF in has:
        yield Hop(number(has[_RTA_OIF]), _text(family, has.get(_RTA_GATEWAY)), flags)
    several, at = has.get(_RTA_MULTIPATH, b""), 0
    while at + _HOP.size <= len(several):
        size, hop_flags, _, interface = _HOP.unpack_from(several, at)
        own = dict(attributes_of(several[at + _HOP.size : at + size]))
        yield Hop(interface, _text(family, own.get(_RTA_GATEWAY)), hop_flags)
        at += max(_HOP.size, (size + 3) & ~3)


def _text(family: int, address: bytes | None) -> str:
    return socket.inet_ntop(family, address) if address else ""


def add_ingress(netlink: Netlink, index: int) -> None:
    """Give an interface a place for filters of what arrives; NetlinkError EEXIST when it has one."""
    values = (0, index, _INGRESS, _INGRESS_PARENT, 0)
    netlink.request(_NEWQDISC, _TC, values, attribute(_TCA_KIND, "ingress"), CREATE | EXCLUSIVE)


def remove_ingress(netlink: Netlink, index: int) -> None:
    """Take it away with its filters; none is fine."""
    try:
        netlink.request(_DELQDISC, _TC, (0, index, _INGRESS, _INGRESS_PARENT, 0))
    except NetlinkError as error:
        if error.code not in (errno.ENOENT, errno.EINVAL):  # there was none
            raise


def add_redirect(netlink: Netlink, index: int, out: int) -> None:
    """Send what arrives at an interface out at another; it has an ingress already."""
    parameters = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, out)
    action = nested(
        1,
        attribute(_ACTION_KIND, "mirred"),
        nested(_ACTION_OPTIONS, attribute(_MIRRED_PARAMETERS, parameters)),
    )
    options = nested(
        _TCA_OPTIONS,
        attribute(_U32_CLASS, _CLASS),
        attribute(_U32_SELECTOR, _MATCH_ALL),
        nested(_U32_ACTION, action),
    )
    values = (0, index, 0, _INGRESS, _INFO)
    netlink.request(_NEWTFILTER, _TC, values, attribute(_TCA_KIND, "u32") + options, CREATE | EXCLUSIVE)


def redirects(netlink: Netlink, index: int) -> set[int]:
    """Interfaces that what arrives at ``index`` is sent out at."""
    found = set()
    for message in netlink.dump(_GETTFILTER, _TC, (0, index, 0, _INGRESS, 0)):
        options = dict(attributes_of(message.attributes.get(_TCA_OPTIONS, b"")))
        for _, action in attributes_of(options.get(_U32_ACTION, b"")):
            own = dict(attributes_of(dict(attributes_of(action)).get(_ACTION_OPTIONS, b"")))
            if _MIRRED_PARAMETERS in own:
                found.add(int(_MIRRED.unpack_from(own[_MIRRED_PARAMETERS])[-1]))
    return found
