"""Interfaces as the kernel tells of them, and what it refuses."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from protect.network import links
from protect.network.links import Interface
from protect.network.netlink import Netlink

MTU = int(Path("/sys/class/net/lo/mtu").read_text())


def test_an_interface_by_its_name() -> None:
    assert links.find("lo") == Interface(1, bytes(6), MTU)
    assert links.index_of("lo") == 1


@pytest.mark.parametrize("name", ["xp-no-such-if", "lo-but-longer-than-names-are", ""])
def test_an_interface_that_is_not_there(name: str) -> None:
    assert links.find(name) is None
    assert links.index_of(name) is None


def test_the_kernel_leaves_out_what_was_not_asked_for() -> None:
    with Netlink() as netlink:
        assert {message["index"] for message in links.addresses(netlink, 1)} <= {1}
        assert {message["table"] for message in links.routes(netlink)} <= {254}


def test_after_a_refusal_the_next_answer_is_the_next_requests() -> None:
    with Netlink() as netlink:
        with pytest.raises(NetlinkError) as caught:
            links.set_up(netlink, 2**31 - 1, 1500)
        assert caught.value.code in (errno.ENODEV, errno.EPERM)
        assert all(message["index"] == 1 for message in links.addresses(netlink, 1))
