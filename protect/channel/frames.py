"""The frames of docs/channel.md: a pure codec, without input or output.

All integers are little-endian.  A header is checked as soon as its 12 bytes are complete, before any byte of
its payload is kept.  A decoder therefore never holds more than one legal frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from protect.model.errors import ProtocolViolation

HEADER = struct.Struct("<BBHII")
"""type, flags, zero, stream, length."""
OFFSET = struct.Struct("<Q")
CREDIT = struct.Struct("<QQ")
FIN = 0x01
VERSION = 1
WINDOW = 65_536
"""Most bytes of one stream that may be under way or unconsumed."""
DATA_TURN = 16_384
"""Most bytes in a DATA frame of ours: a small limit lets streams take turns."""
MAX_STREAM = 0xFFFF_FFFF


class Side(Enum):
    """The sender of a frame."""

    HOST = "host"
    AGENT = "agent"


class Type(IntEnum):
    """The type of a frame."""

    HELLO = 1
    CALL = 2
    REPLY = 3
    EVENT = 4
    DATA = 5
    CREDIT = 6


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table of frames: lengths in bytes, both ends included."""

    senders: frozenset[Side]
    on_stream: bool
    shortest: int
    longest: int
    may_fin: bool = False


_BOTH = frozenset(Side)
_HOST = frozenset({Side.HOST})
_AGENT = frozenset({Side.AGENT})

RULES: Mapping[int, Rule] = {
    Type.HELLO: Rule(_BOTH, False, 0, 4096),
    Type.CALL: Rule(_HOST, True, 0, 1 << 20),
    Type.REPLY: Rule(_AGENT, True, 0, 1 << 20),
    Type.EVENT: Rule(_AGENT, False, 0, 4096),
    Type.DATA: Rule(_BOTH, True, OFFSET.size, OFFSET.size + WINDOW, may_fin=True),
    Type.CREDIT: Rule(_BOTH, True, CREDIT.size, CREDIT.size, may_fin=True),
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; ``payload`` excludes the header."""

    type: Type
    stream: int
    payload: bytes
    fin: bool = False


def violation(cause: str) -> ProtocolViolation:
    """Make a ProtocolViolation; ``cause`` names the broken rule."""
    return ProtocolViolation("read", "channel", cause)


def _header_fault(sender: Side, kind: int, flags: int, zero: int, stream: int, length: int) -> str:
    """The reason against this header from this sender; "" if allowed."""
    rule = RULES.get(kind)
    if rule is None:
        return f"unknown frame type {kind}"
    if sender not in rule.senders:
        return f"{Type(kind).name} from the {sender.value}"
    return _form_fault(rule, kind, flags, zero, stream, length)


def _form_fault(rule: Rule, kind: int, flags: int, zero: int, stream: int, length: int) -> str:
    fits = rule.shortest <= length <= rule.longest and (stream != 0) is rule.on_stream
    if fits and not (flags or zero) and (kind != Type.DATA or length > OFFSET.size):
        return ""
    name = Type(kind).name
    if flags & ~(FIN if rule.may_fin else 0):
        return f"{name} with flags {flags:#04x}"
    if zero:
        return f"{name} with reserved bytes {zero:#06x}"
    if (stream != 0) is not rule.on_stream:
        return f"{name} on stream {stream}"
    if not rule.shortest <= length <= rule.longest:
        return f"{name} of {length} bytes"
    if kind == Type.DATA and length == OFFSET.size and not flags & FIN:
        return "DATA without bytes and without FIN"
    return ""


def _payload_fault(frame: Frame) -> str:
    """The reason why this payload is never allowed, regardless of earlier frames; "" if allowed."""
    if frame.type is Type.CREDIT and not frame.fin:
        consumed, limit = CREDIT.unpack(frame.payload)
        if not consumed <= limit <= consumed + WINDOW:
            return f"CREDIT of {consumed} to {limit}"
    if frame.type is Type.DATA:
        offset = data_offset(frame)
        if offset + len(frame.payload) - OFFSET.size >= 1 << 64:
            return f"DATA at offset {offset} runs past the last offset"
    return ""


def encode(frame: Frame) -> bytes:
    """The frame's bytes; ValueError for a frame that neither side may send."""
    header = (frame.type, FIN if frame.fin else 0, 0, frame.stream, len(frame.payload))
    fault = _form_fault(RULES[frame.type], *header) or _payload_fault(frame)
    if fault:
        raise ValueError(fault)
    return HEADER.pack(*header) + frame.payload


def data(stream: int, offset: int, content: bytes, fin: bool = False) -> Frame:
    """A DATA frame: ``content`` begins at byte ``offset`` of the stream."""
    return Frame(Type.DATA, stream, OFFSET.pack(offset) + content, fin)


def credit(stream: int, consumed: int, limit: int, fin: bool = False) -> Frame:
    """A CREDIT frame."""
    return Frame(Type.CREDIT, stream, CREDIT.pack(consumed, limit), fin)


def data_offset(frame: Frame) -> int:
    """The stream offset of a DATA frame's bytes (``payload[8:]``)."""
    offset: int = OFFSET.unpack_from(frame.payload)[0]
    return offset


def credit_values(frame: Frame) -> tuple[int, int]:
    """``consumed`` and ``limit`` of a CREDIT frame."""
    consumed, limit = CREDIT.unpack(frame.payload)
    return consumed, limit


class FrameDecoder:
    """Cuts one side's byte stream into frames, for chunks of any size."""

    def __init__(self, sender: Side, longest_reply: Callable[[int], int] | None = None) -> None:
        """``longest_reply``: the limit in bytes for the REPLY to a call, if below the table's."""
        self._sender = sender
        self._longest_reply = longest_reply
        self._source: bytes | bytearray = b""
        self._at = 0
        self._broken: str | None = None

    def add(self, untrusted_bytes: bytes) -> None:
        """Add bytes from the other side; bytes after a violation are dropped."""
        if self._broken is not None:
            return
        if self._at == len(self._source):
            self._source = untrusted_bytes
        elif isinstance(self._source, bytearray):
            del self._source[: self._at]
            self._source += untrusted_bytes
        else:
            self._source = bytearray(memoryview(self._source)[self._at :])
            self._source += untrusted_bytes
        self._at = 0

    def take(self) -> Frame | None:
        """The next frame; None while incomplete.  ProtocolViolation if the frame breaks a rule.

        After a violation every further call raises it again.
        """
        if self._broken is not None:
            raise violation(self._broken)
        source, begin = self._source, self._at + HEADER.size
        if len(source) < begin:
            return None
        kind, flags, zero, stream, length = HEADER.unpack_from(source, self._at)
        fault = _header_fault(self._sender, kind, flags, zero, stream, length)
        if kind == Type.REPLY and self._longest_reply is not None and not fault:
            fault = f"REPLY of {length} bytes" if length > self._longest_reply(stream) else ""
        if fault:
            self._fail(fault)
        if len(source) < begin + length:
            return None
        payload = bytes(memoryview(source)[begin : begin + length])
        frame = Frame(Type(kind), stream, payload, bool(flags & FIN))
        fault = _payload_fault(frame)
        if fault:
            self._fail(fault)
        self._at = begin + length
        return frame

    def _fail(self, cause: str) -> None:
        self._broken = cause
        self._source = b""
        self._at = 0
        raise violation(cause)
