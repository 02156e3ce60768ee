"""Decides which frames pass between a zone and its pod's network: the pod's own only, in both directions.

A zone's kernel may send anything.  With the spoof check a frame leaves only with the addresses that CNI gave
the pod: the zone cannot impersonate other hosts of the node's network, by Ethernet, ARP, IPv4, IPv6 or
neighbour discovery.  Nor does the zone see frames for others, which a bridge sometimes floods to every port.

Offsets: IEEE 802.3; RFC 826 (ARP), 791 (IPv4), 8200 (IPv6), 4861 (neighbour discovery), 2710 and 3810
(multicast groups).  RFC 7113 explains how extension headers hide messages of routers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from protect.model.zone import GuestNetwork
from protect.network.bpf import Program

_DESTINATION, _SOURCE, _TYPE = 0, 6, 12
_IPV4, _ARP, _IPV6 = b"\x08\x00", b"\x08\x06", b"\x86\xdd"
_IPV4_SOURCE, _IPV4_SIZE = 26, 34
_ARP_MAC, _ARP_SOURCE, _ARP_TARGET, _ARP_SIZE = 22, 28, 38, 42
_IPV6_NEXT, _IPV6_SOURCE, _IPV6_SIZE = 20, 22, 54
_ICMPV6, _HOP_BY_HOP, _ROUTING, _FRAGMENT, _OPTIONS = b"\x3a", b"\x00", b"\x2b", b"\x2c", b"\x3c"
_EXTENSION_SIZE, _EXTENSIONS = 8, 4
"""Bytes of the smallest extension header and of a fragment header; maximum number of extension headers."""
_NEXT, _LENGTH, _FRAGMENT_OFFSET = 0, 1, 2
_LATER_FRAGMENT = b"\xff\xf8"
# Offsets in an ICMPv6 message.
_TYPE_OF_MESSAGE, _TARGET, _TARGET_END = 0, 8, 24
_QUERY, _REPORT, _DONE, _REPORT_2 = b"\x82", b"\x83", b"\x84", b"\x8f"
_ROUTER_SOLICITATION, _ROUTER_ADVERTISEMENT, _REDIRECT, _MULTICAST_ROUTER = b"\x85", b"\x86", b"\x89", b"\x97"
_NEIGHBOUR_SOLICITATION, _NEIGHBOUR_ADVERTISEMENT = b"\x87", b"\x88"
_OF_ROUTERS = (_QUERY, _ROUTER_ADVERTISEMENT, _REDIRECT, _MULTICAST_ROUTER)
_MULTICAST = b"\x01"


def from_zone(guest: GuestNetwork, out: int, *, spoof_check: bool = True) -> Program:
    """A program for the zone's outgoing frames; passed frames leave at the interface with index ``out``.

    Without ``spoof_check`` the zone may use any source, for zones that forward for others.
    """
    program = Program()
    if spoof_check:
        _check_source(program, guest)
        program.label("drop")
        program.drop()
        program.label("pass")
    program.redirect(out)
    return program


def to_zone(guest: GuestNetwork, out: int, *, spoof_check: bool = True) -> Program:
    """A program for the pod's arriving frames, to the zone's interface; without ``spoof_check`` for all."""
    program = Program()
    if spoof_check:
        program.at_least(14, "drop")
        program.jump_if_set(_DESTINATION, _MULTICAST, "pass")
        program.equal(_DESTINATION, guest.mac, "drop")
        program.jump("pass")
        program.label("drop")
        program.drop()
        program.label("pass")
    program.redirect(out)
    return program


def _check_source(program: Program, guest: GuestNetwork) -> None:
    addresses = [ipaddress.ip_interface(text).ip for text in guest.addresses]
    four = [one.packed for one in addresses if one.version == 4]
    six = [one.packed for one in addresses if one.version == 6]
    program.at_least(_IPV4_SIZE, "drop")
    program.untagged("drop")
    program.equal(_SOURCE, guest.mac, "drop")
    if not addresses:
        program.jump("pass")  # CNI gave no address: the pod configures its own
    if four:
        program.jump_if(_TYPE, _IPV4, "IPv4")
        program.jump_if(_TYPE, _ARP, "ARP")
    if six:
        program.jump_if(_TYPE, _IPV6, "IPv6")
    if addresses:
        program.jump("drop")
    if four:
        program.label("IPv4")
        _any_of(program, _IPV4_SOURCE, four)
        program.label("ARP")
        program.at_least(_ARP_SIZE, "drop")
        program.equal(_ARP_MAC, guest.mac, "drop")
        program.equal(_ARP_SOURCE, bytes(4), "of somebody")
        # A host that asks whether an address is taken has no address yet (RFC 5227).  A probe for another
        # pod's address would block it.
        _any_of(program, _ARP_TARGET, four)
        program.label("of somebody")
        _any_of(program, _ARP_SOURCE, four)
    if six:
        program.label("IPv6")
        _check_ipv6(program, [*six, link_local(guest.mac)])


def _check_ipv6(program: Program, own: Sequence[bytes]) -> None:
    program.at_least(_IPV6_SIZE, "drop")
    for number, address in enumerate(own):
        program.equal(_IPV6_SOURCE, address, f"not {number}")
        program.jump("mine")
        program.label(f"not {number}")
    program.equal(_IPV6_SOURCE, bytes(16), "drop")
    _check_nobodys(program, own)
    program.label("mine")
    _pass_extensions(program)
    program.jump_if_kept(_ICMPV6, "message")
    program.jump("pass")
    program.label("message")
    program.at_least(_TYPE_OF_MESSAGE + 1, "drop")
    for kind in _OF_ROUTERS:
        program.jump_if(_TYPE_OF_MESSAGE, kind, "drop")
    program.equal(_TYPE_OF_MESSAGE, _NEIGHBOUR_ADVERTISEMENT, "pass")
    program.at_least(_TARGET_END, "drop")
    _any_of(program, _TARGET, own)


def _check_nobodys(program: Program, own: Sequence[bytes]) -> None:
    """Before a host has an address it may probe its own address, look for routers, and join groups."""
    message, joining = _IPV6_SIZE, _IPV6_SIZE + _EXTENSION_SIZE
    program.jump_if(_IPV6_NEXT, _HOP_BY_HOP, "joining")
    program.equal(_IPV6_NEXT, _ICMPV6, "drop")
    program.at_least(message + 1, "drop")
    program.jump_if(message, _ROUTER_SOLICITATION, "pass")
    program.equal(message, _NEIGHBOUR_SOLICITATION, "drop")
    program.at_least(message + _TARGET_END, "drop")
    _any_of(program, message + _TARGET, own)
    program.label("joining")
    program.at_least(joining + 1, "drop")
    program.equal(_IPV6_SIZE, _ICMPV6 + b"\x00", "drop")  # an extension header of the smallest size
    for kind in (_REPORT, _DONE, _REPORT_2):
        program.jump_if(joining, kind, "pass")
    program.jump("drop")


def _pass_extensions(program: Program) -> None:
    """Place the program behind the extension headers, and keep the type of the next header.

    A later fragment passes: without the first fragment, which is checked, no message is complete.
    """
    program.keep(_IPV6_NEXT)
    program.place(_IPV6_SIZE)
    for number in range(_EXTENSIONS):
        for kind in (_HOP_BY_HOP, _ROUTING, _OPTIONS):
            program.jump_if_kept(kind, f"extension {number}")
        program.jump_if_kept(_FRAGMENT, f"fragment {number}")
        program.jump("no extension")
        program.label(f"extension {number}")
        program.at_least(_EXTENSION_SIZE, "drop")
        program.keep(_NEXT)
        program.move_place_by(_LENGTH, _EXTENSION_SIZE)
        program.jump(f"after {number}")
        program.label(f"fragment {number}")
        program.at_least(_EXTENSION_SIZE, "drop")
        program.jump_if_set(_FRAGMENT_OFFSET, _LATER_FRAGMENT, "pass")
        program.keep(_NEXT)
        program.label(f"after {number}")
        program.move_place(_EXTENSION_SIZE)
    for kind in (_HOP_BY_HOP, _ROUTING, _FRAGMENT, _OPTIONS):
        program.jump_if_kept(kind, "drop")
    program.label("no extension")


def _any_of(program: Program, offset: int, values: Sequence[bytes]) -> None:
    """Drop the frame unless one of the values is at the offset."""
    for number, value in enumerate(values):
        last = number == len(values) - 1
        program.equal(offset, value, "drop" if last else f"{offset} other than {number}")
        program.jump("pass")
        program.label(f"{offset} other than {number}")


def link_local(mac: bytes) -> bytes:
    """The address that an interface with this MAC assigns itself (RFC 4291, appendix A)."""
    return b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
