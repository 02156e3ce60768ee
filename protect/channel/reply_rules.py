"""Checks the encoded bytes of replies against bounds for each operation, before decoding.

A message of 2 bytes becomes an object of some 300 bytes; a reply of 1 MiB becomes half a million objects.
Therefore the repeatable fields are counted first, by a walk through the wire format
(https://protobuf.dev/programming-guides/encoding/) down to their depth and no further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protect.channel.frames import violation
from xenpod_proto.channel.v1 import channel_pb2 as pb

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_SPARE = 64
"""Number of unknown fields that a later agent may add."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Bounds of one message: bytes, encoded fields, and nested messages by field number.

    Without ``parts`` a field can repeat only by a second encoding; the limit of bytes bounds the repetitions.
    """

    longest: int
    most_fields: int = 0
    parts: Mapping[int, Shape] = field(default_factory=dict)


_SMALL = 8192
_PROCESSES = pb.LIMIT_CONTAINERS + pb.LIMIT_EXECS
_PROCESS_LIST = Shape(
    256 << 10,
    _PROCESSES + pb.LIMIT_CONNECTIONS + _SPARE,
    {
        pb.ProcessList.PROCESSES_FIELD_NUMBER: Shape(2048),
        pb.ProcessList.CONNECTIONS_FIELD_NUMBER: Shape(64),
    },
)
_ZONE_STATS = Shape(16 << 10, 128, {pb.ZoneStats.INTERFACES_FIELD_NUMBER: Shape(512)})
_STATS = Shape(
    144 << 10,
    pb.LIMIT_CONTAINERS + 1 + _SPARE,
    {pb.Stats.CONTAINERS_FIELD_NUMBER: Shape(2048), pb.Stats.ZONE_FIELD_NUMBER: _ZONE_STATS},
)

_REPLIES: Mapping[str, Shape] = {
    operation: Shape(shape.longest + 64, _SPARE, {number: shape})
    for operation, number, shape in (
        ("list_processes", pb.Reply.PROCESSES_FIELD_NUMBER, _PROCESS_LIST),
        ("get_stats", pb.Reply.STATS_FIELD_NUMBER, _STATS),
    )
}
_OTHER = Shape(_SMALL)


def longest(operation: str) -> int:
    """The greatest size of a reply to this operation, in bytes."""
    return _REPLIES.get(operation, _OTHER).longest


def check_reply(operation: str, untrusted: bytes) -> None:
    """ProtocolViolation if the reply holds more than a legal answer to this operation.

    The check does not prove that the reply can be parsed.
    """
    shape = _REPLIES.get(operation, _OTHER)
    if len(untrusted) > shape.longest:
        raise violation(f"REPLY to {operation} of {len(untrusted)} bytes")
    _check(operation, shape, untrusted, 0, len(untrusted))


def _check(operation: str, shape: Shape, source: bytes, at: int, end: int) -> None:
    if end - at > shape.longest:
        raise violation(f"REPLY to {operation} with a message of {end - at} bytes")
    if not shape.parts:
        return
    fields = 0
    while at < end:
        fields += 1
        if fields > shape.most_fields:
            raise violation(f"REPLY to {operation} with more than {shape.most_fields} fields in one message")
        tag, at = _varint(operation, source, at, end)
        begin, at = _value(operation, tag & 7, source, at, end)
        part = shape.parts.get(tag >> 3)
        if part is not None:
            _check(operation, part, source, begin, at)


def _value(operation: str, kind: int, source: bytes, at: int, end: int) -> tuple[int, int]:
    """Begin and end of a field's value; messages and texts without their length."""
    size = 0
    if kind == _VARINT:
        return at, _varint(operation, source, at, end)[1]
    if kind == _BYTES:
        size, at = _varint(operation, source, at, end)
    elif kind in (_FIXED64, _FIXED32):
        size = 8 if kind == _FIXED64 else 4
    else:
        raise violation(f"REPLY to {operation} with a field of wire type {kind}")
    if size > end - at:
        raise violation(f"REPLY to {operation} with a field that runs past its message")
    return at, at + size


def _varint(operation: str, source: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a varint: its value, and the index after it."""
    if at < end and source[at] < 0x80:  # the usual case
        return source[at], at + 1
    number = 0
    for place, byte in enumerate(source[at : min(end, at + _LONGEST_VARINT)]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise violation(f"REPLY to {operation} with a number that does not end")
