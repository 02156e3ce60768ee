"""rtnetlink, as far as zones' interfaces need it: a socket, and messages made of attributes.

Of our own: a library that knows all of rtnetlink takes half a millisecond for each request, a splice makes a
dozen, and pods wait for it.

Sources: netlink(7), rtnetlink(7), linux/netlink.h, linux/rtnetlink.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType

_HEAD = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr: length, type
_ERROR = struct.Struct("=i")
_U32 = struct.Struct("=I")
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_INTERRUPTED = 0x10  # NLM_F_DUMP_INTR: it changed while it was being dumped
_TYPE_MASK = 0x3FFF
_RECEIVED = 1 << 17  # of the kernel's parts of a dump the largest has 32 KiB
_TIMEOUT = 60.0
_DUMPS = 10

CREATE, EXCLUSIVE = 0x400, 0x200
"""Flags of requests that make something; EXCLUSIVE: EEXIST when it is there."""


class NetlinkError(Exception):
    """The kernel refused a request."""

    def __init__(self, code: int) -> None:
        super().__init__(os.strerror(code))
        self.code = code


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an answer: its fixed part, and its attributes by type (the last of each)."""

    fixed: bytes
    attributes: Mapping[int, bytes]


class Netlink:
    """A socket in the network namespace of the thread that opens it; a context manager."""

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
        # The kernel answers at once: this is for a kernel that does not.
        self._socket.settimeout(_TIMEOUT)
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def request(
        self,
        kind: int,
        fixed: struct.Struct,
        values: tuple[int, ...],
        attributes: bytes = b"",
        flags: int = 0,
    ) -> list[Message]:
        """Ask for one thing, or have it changed; NetlinkError when the kernel refuses."""
        answer, _ = self._exchange(kind, fixed, fixed.pack(*values) + attributes, _ACK | flags)
        return answer

    def dump(
        self, kind: int, fixed: struct.Struct, values: tuple[int, ...], attributes: bytes = b""
    ) -> list[Message]:
        """Ask for all there are of a kind."""
        for _ in range(_DUMPS):
            answer, whole = self._exchange(kind, fixed, fixed.pack(*values) + attributes, _DUMP)
            if whole:
                return answer
        raise NetlinkError(errno.EAGAIN)

    def _exchange(
        self, kind: int, fixed: struct.Struct, body: bytes, flags: int
    ) -> tuple[list[Message], bool]:
        """The answer's messages, and whether nothing changed meanwhile."""
        self._sequence += 1
        head = _HEAD.pack(_HEAD.size + len(body), kind, _REQUEST | flags, self._sequence, 0)
        self._socket.send(head + body)
        answer: list[Message] = []
        whole = True
        while True:
            for kind, flags, sequence, content in _messages(self._socket.recv(_RECEIVED)):
                if sequence != self._sequence:
                    continue  # of a request that was given up
                if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                    # A dump may end with an error, too.
                    code = -_ERROR.unpack_from(content)[0] if len(content) >= _ERROR.size else 0
                    if code:
                        raise NetlinkError(code)
                    return answer, whole
                whole = whole and not flags & _INTERRUPTED
                parts = dict(attributes_of(content[_aligned(fixed.size) :]))
                answer.append(Message(content[: fixed.size], parts))


def attribute(kind: int, payload: bytes | int | str) -> bytes:
    """An attribute: bytes as they are, a number as 32 bits, a string with its zero."""
    if isinstance(payload, int):
        payload = _U32.pack(payload)
    elif isinstance(payload, str):
        payload = payload.encode() + b"\0"
    size = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(size, kind) + payload + bytes(_aligned(size) - size)


def nested(kind: int, *parts: bytes) -> bytes:
    """An attribute made of attributes."""
    return attribute(kind, b"".join(parts))


def attributes_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Types and payloads of attributes, without the bits that say how a payload is made."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + size]
        at += _aligned(size)


def number(payload: bytes) -> int:
    """The 32 bits of an attribute."""
    return int(_U32.unpack_from(payload)[0])


def _messages(data: bytes) -> Iterable[tuple[int, int, int, bytes]]:
    """Type, flags, sequence and content of each message."""
    at = 0
    while at + _HEAD.size <= len(data):
        size, kind, flags, sequence, _ = _HEAD.unpack_from(data, at)
        if size < _HEAD.size:
            return
        yield kind, flags, sequence, data[at + _HEAD.size : at + size]
        at += _aligned(size)


def _aligned(size: int) -> int:
    return (size + 3) & ~3
