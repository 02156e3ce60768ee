"""Decides which frames pass between a zone and its pod's network: its own out, the pod's in.

A zone's kernel may send anything.  With the spoof check only frames with the addresses that CNI gave
the pod leave: nobody else on the node's network can be impersonated, by Ethernet, ARP, IPv4, IPv6 or its
neighbour discovery.  And it sees no frames to others, which a bridge sends to every port now and then.

Offsets: IEEE 802.3; RFC 826 (ARP), 791 (IPv4), 8200 (IPv6), 4861 (neighbour discovery).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from protect.model.zone import GuestNetwork
from protect.network.bpf import Program

_DESTINATION, _SOURCE, _TYPE = 0, 6, 12
_IPV4, _ARP, _IPV6 = b"\x08\x00", b"\x08\x06", b"\x86\xdd"
_IPV4_SOURCE, _IPV4_SIZE = 26, 34
_ARP_MAC, _ARP_SOURCE, _ARP_SIZE = 22, 28, 42
_IPV6_NEXT, _IPV6_SOURCE, _IPV6_SIZE = 20, 22, 54
_ICMPV6, _HOP_BY_HOP = b"\x3a", b"\x00"
_ICMP_TYPE, _ICMP_TARGET, _ICMP_TARGET_END = 54, 62, 78
_ROUTER_ADVERTISEMENT, _NEIGHBOUR_ADVERTISEMENT, _REDIRECT = b"\x86", b"\x88", b"\x89"
_MULTICAST = 1


def from_zone(guest: GuestNetwork, out: int, *, spoof_check: bool = True) -> Program:
    """What the zone sends, out at the interface of the index ``out``.

    Without ``spoof_check`` it may have any source, for zones that forward for others.
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
    """What arrives for the pod, to the zone's interface; without ``spoof_check`` also what is for others."""
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
        program.jump("pass")  # the pod finds its own, on a network without any from CNI
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
        # Who asks whether an address is taken has none yet (RFC 5227).
        _any_of(program, _ARP_SOURCE, [*four, bytes(4)])
    if six:
        program.label("IPv6")
        _check_ipv6(program, [*six, link_local(guest.mac)])


def _check_ipv6(program: Program, own: Sequence[bytes]) -> None:
    program.at_least(_IPV6_SIZE, "drop")
    for number, address in enumerate(own):
        program.equal(_IPV6_SOURCE, address, f"not {number}")
        program.jump("mine")
        program.label(f"not {number}")
    # Without an address a host may look for others that have it, and join groups for that.
    program.equal(_IPV6_SOURCE, bytes(16), "drop")
    program.jump_if(_IPV6_NEXT, _HOP_BY_HOP, "pass")
    program.equal(_IPV6_NEXT, _ICMPV6, "drop")
    program.label("mine")
    program.equal(_IPV6_NEXT, _ICMPV6, "pass")
    program.at_least(_ICMP_TYPE + 1, "drop")
    program.jump_if(_ICMP_TYPE, _ROUTER_ADVERTISEMENT, "drop")
    program.jump_if(_ICMP_TYPE, _REDIRECT, "drop")
    program.equal(_ICMP_TYPE, _NEIGHBOUR_ADVERTISEMENT, "pass")
    program.at_least(_ICMP_TARGET_END, "drop")
    _any_of(program, _ICMP_TARGET, own)


def _any_of(program: Program, offset: int, values: Sequence[bytes]) -> None:
    """Drop the frame unless one of these values is at the offset."""
    for number, value in enumerate(values):
        last = number == len(values) - 1
        program.equal(offset, value, "drop" if last else f"{offset} other than {number}")
        program.jump("pass")
        program.label(f"{offset} other than {number}")


def link_local(mac: bytes) -> bytes:
    """The address that an interface with this MAC gives itself (RFC 4291, appendix A)."""
    return b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
