"""A netlink socket for interfaces: sends pyroute2's messages, one request after the other.

pyroute2's own sockets cost more than the kernel's work.  A request to ``IPRoute``, with its event loop, takes
0.3 to 0.5 ms of CPU; the open of an ``IPRSocket``, without a loop, 0.1 ms.  A pod waits for some ten requests
on three sockets.  pyroute2's sockets also serve events, overlapping requests and several threads; no caller
here needs these.
"""

from __future__ import annotations

import errno
import socket
import struct
from types import TracebackType
from typing import Any

from pyroute2.netlink import (
    NETLINK_GET_STRICT_CHK,
    NETLINK_ROUTE,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOL_NETLINK,
)
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

_RECEIVED_BYTES = 1 << 17  # the kernel's largest part of a dump has 32 KiB
_TRIES = 10
_HEADER_BYTES = 16  # struct nlmsghdr

Message = Any
"""A netlink message; pyroute2 has no types for them."""


class Netlink:
    """A socket in the network namespace of the thread that opens it; a context manager."""

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_NETLINK, kind, NETLINK_ROUTE)
        # The kernel (4.20 on) omits unrequested entries from a dump: decoding them is the main cost.
        self._socket.setsockopt(SOL_NETLINK, NETLINK_GET_STRICT_CHK, 1)
        self._marshal = MarshalRtnl()

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def request(self, kind: int, message: Message, flags: int = 0) -> list[Message]:
        """Get or change one object.  NetlinkError: the kernel refuses."""
        return self._answer(_encoded(kind, message, NLM_F_ACK | flags))

    def dump(self, kind: int, message: Message) -> list[Message]:
        """List all objects of a kind, filtered by ``message``.  NetlinkError: the kernel refuses.

        A change during the dump may be missing in the answer: then the dump is repeated.
        """
        request = _encoded(kind, message, NLM_F_DUMP)
        for _ in range(_TRIES - 1):
            try:
                return self._answer(request)
            except NetlinkError as error:
                if error.code != errno.EINTR:
                    raise
        return self._answer(request)

    def _answer(self, request: bytes) -> list[Message]:
        self._socket.send(request)
        answer: list[Message] = []
        interrupted = 0
        while True:
            for part in self._marshal.parse(self._socket.recv(_RECEIVED_BYTES)):
                header = part["header"]
                if header["error"] is not None:
                    raise header["error"]
                interrupted |= header["flags"] & NLM_F_DUMP_INTR
                if header["type"] == NLMSG_DONE:
                    _check_end(part, interrupted)
                if header["type"] in (NLMSG_ERROR, NLMSG_DONE):  # an error of 0 is the acknowledgement
                    return answer
                answer.append(part)


def _encoded(kind: int, message: Message, flags: int) -> bytes:
    message["header"]["type"] = kind
    message["header"]["flags"] = NLM_F_REQUEST | flags
    message.encode()
    return bytes(message.data)


def _check_end(done: Message, interrupted: int) -> None:
    """Raise NetlinkError for a dump that failed midway, or whose parts may be inconsistent."""
    (status,) = struct.unpack_from("i", done.data, done.offset + _HEADER_BYTES)
    if status < 0:
        raise NetlinkError(-status)
    if interrupted:
        raise NetlinkError(errno.EINTR)
