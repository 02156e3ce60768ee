"""What a zone has to set on its interface: read off the one that CNI made for the pod.

Only what the zone channel can say is taken over: unicast routes of the main table with their
gateway.  Metrics, preferred sources and permanent neighbours are not.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping

from daemonkit.faults import Missing
from protect.model.zone import GuestNetwork, GuestRoute
from protect.network import links
from protect.network.links import Hop
from protect.network.netlink import Netlink

_TABLE_MAIN = 254
_TYPE_UNICAST = 1
_PROTO_KERNEL = 2
_PROTO_RA = 9
_SCOPE_GLOBAL = 0
_NEXTHOP_ONLINK = 4
_DEFAULTS: Mapping[int, str] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
_WIDTHS: Mapping[int, int] = {socket.AF_INET: 32, socket.AF_INET6: 128}


def read_guest_network(netlink: Netlink, interface: str) -> GuestNetwork:
    """Of the interface by its name, in the namespace of ``netlink``.  Missing: no such interface."""
    link = links.find_link(netlink, interface)
    if link is None:
        raise Missing("read interface", interface, "no such interface in the network namespace")
    # The guest makes its own link-local addresses.
    own = [found for found in links.addresses(netlink, link.index) if found.scope == _SCOPE_GLOBAL]
    ways = (way for family in _DEFAULTS for way in _routes(netlink, family, link.index))
    return GuestNetwork(
        mac=link.mac,
        mtu=link.mtu,
        addresses=tuple(f"{found.own}/{found.prefix}" for found in own),
        routes=tuple(_in_order(ways)),
    )


def _routes(netlink: Netlink, family: int, interface: int) -> Iterator[GuestRoute]:
    for route in links.routes(netlink, family):
        if route.table != _TABLE_MAIN or route.type != _TYPE_UNICAST:
            continue
        if route.protocol in (_PROTO_KERNEL, _PROTO_RA):
            continue  # the guest's kernel makes the connected ones of its own
        destination = f"{route.destination or _DEFAULTS[family]}/{route.length}"
        if destination.startswith(("fe80:", "ff00:")):
            continue
        for hop in route.hops:
            if hop.interface == interface:
                yield from _hop(destination, family, hop)


def _hop(destination: str, family: int, hop: Hop) -> Iterator[GuestRoute]:
    if hop.gateway and hop.flags & _NEXTHOP_ONLINK:  # said to be on the link although no route says so
        yield GuestRoute(f"{hop.gateway}/{_WIDTHS[family]}", "")
    yield GuestRoute(destination, hop.gateway)


def _in_order(routes: Iterable[GuestRoute]) -> list[GuestRoute]:
    """On-link routes before those by gateways that they reach; each once."""
    unique = dict.fromkeys(routes)
    return sorted(unique, key=lambda route: route.gateway != "")
