"""Interfaces in the kernel's reports, and refusals of the kernel."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyroute2.netlink import NLM_F_DUMP_INTR, NLM_F_MULTI, NLMSG_DONE
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETADDR, RTM_NEWADDR
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg

from daemonkit.faults import Broken
from protect.network import bpf, links
from protect.network.links import Interface
from protect.network.netlink import Netlink

MTU = int(Path("/sys/class/net/lo/mtu").read_text())


def test_an_interface_by_its_name() -> None:
    assert links.find_interface("lo") == Interface(1, bytes(6), MTU)
    assert links.index_of("lo") == 1


@pytest.mark.parametrize("name", ["xp-no-such-if", "lo-but-longer-than-names-are", ""])
def test_a_missing_interface_is_none(name: str) -> None:
    assert links.find_interface(name) is None
    assert links.index_of(name) is None


def test_the_kernel_leaves_out_unrequested_parts() -> None:
    with Netlink() as netlink:
        assert {message["index"] for message in links.addresses(netlink, 1)} <= {1}
        assert {message["table"] for message in links.routes(netlink)} <= {254}


def test_after_a_refusal_the_next_answer_is_the_next_requests() -> None:
    with Netlink() as netlink:
        with pytest.raises(NetlinkError) as caught:
            links.set_up(netlink, 2**31 - 1, 1500)
        assert caught.value.code in (errno.ENODEV, errno.EPERM)
        assert all(message["index"] == 1 for message in links.addresses(netlink, 1))


def address(index: int, flags: int = 0) -> bytes:
    """A part of a dump: an address of an interface."""
    part = ifaddrmsg()
    part["index"] = index
    part["header"]["type"], part["header"]["flags"] = RTM_NEWADDR, NLM_F_MULTI | flags
    part.encode()
    return bytes(part.data)


def end(status: int = 0, flags: int = 0) -> bytes:
    return struct.pack("IHHIIi", 20, NLMSG_DONE, NLM_F_MULTI | flags, 0, 0, status)


def dumped(answers: Sequence[bytes]) -> list[int]:
    """The interfaces of a dump with the given answers; the kernel gets requests up to the last answer."""
    with Netlink() as netlink:
        kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        netlink._socket.close()
        netlink._socket = ours
        with kernel:
            kernel.settimeout(60)
            for answer in answers:
                kernel.send(answer)
            try:
                return [message["index"] for message in netlink.dump(RTM_GETADDR, ifaddrmsg())]
            finally:
                netlink._socket.close()
                asked = list(iter(lambda: kernel.recv(4096), b""))
                assert len(asked) == sum(NLMSG_DONE == struct.unpack_from("H", one, 4)[0] for one in answers)
                assert len(set(asked)) == 1, "not the same question"


def test_an_interrupted_dump_is_repeated() -> None:
    """The kernel reports the change in the next part, or at the end."""
    changed = [address(1), address(2, NLM_F_DUMP_INTR), end()]
    at_the_end = [address(1), end(flags=NLM_F_DUMP_INTR)]
    assert dumped([*changed, *at_the_end, address(1), address(3), end()]) == [1, 3]


def test_an_always_interrupted_dump_fails() -> None:
    with pytest.raises(NetlinkError) as caught:
        dumped(10 * [end(flags=NLM_F_DUMP_INTR)])
    assert caught.value.code == errno.EINTR


def test_a_dump_with_a_failure_midway_is_no_answer() -> None:
    with pytest.raises(NetlinkError) as caught:
        dumped([address(1), end(-errno.ENOMEM)])
    assert caught.value.code == errno.ENOMEM


class _Kernel:
    """bpf(2) that fails with these errors in order, and then loads the program."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def syscall(self, *_: object) -> int:
        if not self.errors:
            return 7
        ctypes.set_errno(self.errors.pop(0))
        return -1


@pytest.mark.parametrize(
    ("errors", "loaded"), [([11], True), ([11] * 4, True), ([11] * 5, False), ([1], False)]
)
def test_a_signal_does_not_keep_a_filter_from_being_loaded(
    monkeypatch: pytest.MonkeyPatch, errors: list[int], loaded: bool
) -> None:
    """The kernel gives the check up with EAGAIN (11); EPERM (1) and the like stay."""
    kernel = _Kernel(*errors)
    monkeypatch.setattr(bpf, "_libc", kernel)
    program = bpf.Program()
    program.drop()
    if loaded:
        assert program.load() == 7
    else:
        with pytest.raises(Broken, match="bpf"):
            program.load()
    assert not kernel.errors
