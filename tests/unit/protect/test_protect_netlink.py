"""Messages of rtnetlink: attributes there and back, and what the kernel answers."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protect.network import links
from protect.network.netlink import Netlink, NetlinkError, attribute, attributes_of, nested, number


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40))))
def test_attributes_there_and_back(wanted: list[tuple[int, bytes]]) -> None:
    data = b"".join(attribute(kind, payload) for kind, payload in wanted)
    assert len(data) % 4 == 0
    assert list(attributes_of(data)) == wanted


def test_numbers_strings_and_nests() -> None:
    data = nested(18, attribute(1, "veth"), attribute(4, 1400))
    assert data == bytes.fromhex("1800 1200  0900 0100 76657468 00 000000  0800 0400 78050000")
    ((kind, inner),) = attributes_of(data)
    assert kind == 18
    parts = dict(attributes_of(inner))
    assert parts[1] == b"veth\0" and number(parts[4]) == 1400


@given(st.binary(max_size=64))
def test_whatever_comes_is_read_to_an_end(data: bytes) -> None:
    assert sum(len(payload) for _, payload in attributes_of(data)) <= len(data)


def test_the_bits_that_say_how_a_payload_is_made_are_left_out() -> None:
    assert list(attributes_of(struct.pack("=HH", 4, 0x8000 | 7))) == [(7, b"")]


def test_an_interface_by_its_name() -> None:
    with Netlink() as netlink:
        found = links.find_link(netlink, "lo")
        assert found is not None and found.index == 1 and found.mac == bytes(6)
        assert links.find_link(netlink, "xp-no-such-if") is None


def test_a_refusal_has_the_kernels_code() -> None:
    with Netlink() as netlink, pytest.raises(NetlinkError) as caught:
        links.set_up(netlink, 2**31 - 1, 1500)
    assert caught.value.code in (errno.ENODEV, errno.EPERM)
    with Netlink() as netlink:
        # The next answer is the next request's.
        assert links.find_link(netlink, "lo") is not None
