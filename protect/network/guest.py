"""Reads a zone's network configuration from the interface that CNI made for the pod.

Only configuration known to the zone channel is taken over: unicast routes of the main table with their
gateway.  Metrics, preferred sources and permanent neighbours are left out.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping

from protect.model.zone import GuestNetwork, GuestRoute
from protect.network import links
from protect.network.links import Interface
from protect.network.netlink import Message, Netlink

_TYPE_UNICAST = 1
_PROTO_KERNEL = 2
_PROTO_RA = 9
_SCOPE_GLOBAL = 0
_NEXTHOP_ONLINK = 4
_DEFAULTS: Mapping[int, str] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_WIDTHS: Mapping[int, int] = {socket.AF_INET: 32, socket.AF_INET6: 128}


def read_guest_network(netlink: Netlink, interface: Interface) -> GuestNetwork:
    """The network of an interface in the namespace of ``netlink``."""
    return GuestNetwork(
        mac=interface.mac,
        mtu=interface.mtu,
        addresses=tuple(_addresses(links.addresses(netlink, interface.index))),
        routes=tuple(_in_order(_routes(links.routes(netlink), interface.index))),
    )


def _addresses(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        if message["scope"] == _SCOPE_GLOBAL:  # the guest assigns its own link-local addresses
            # on point-to-point links IFA_ADDRESS is the peer's address
            own = message.get("local") or message.get("address")
            yield f"{own}/{message['prefixlen']}"


def _routes(messages: Iterable[Message], interface: int) -> Iterator[GuestRoute]:
    for message in messages:
        family = message["family"]
        if family not in _DEFAULTS:
            continue
        if message["type"] != _TYPE_UNICAST or message["proto"] in (_PROTO_KERNEL, _PROTO_RA):
            continue  # the guest's kernel creates its own connected routes
        destination = f"{message.get('dst') or _DEFAULTS[family]}/{message['dst_len']}"
        if destination.startswith(("fe80:", "ff00:")):
            continue
        for hop in message.get("multipath") or [message]:
            if hop.get("oif") == interface or hop.get("oif") is None and hop["oif"] == interface:
                yield from _hop(destination, family, hop)


def _hop(destination: str, family: int, hop: Message) -> Iterator[GuestRoute]:
    gateway = hop.get("gateway") or ""
    if gateway and hop["flags"] & _NEXTHOP_ONLINK:  # marked as on-link, without a route
        yield GuestRoute(f"{gateway}/{_WIDTHS[family]}", "")
    yield GuestRoute(destination, gateway)


def _in_order(routes: Iterable[GuestRoute]) -> list[GuestRoute]:
    """Sort routes: on-link routes before routes through gateways; each route once."""
    unique = dict.fromkeys(routes)
    return sorted(unique, key=lambda route: route.gateway != "")
