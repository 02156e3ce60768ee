"""Checks of the delegate's answers: bytes that a caller cannot decode would spoil our part of a list too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from cri.delegate.kinds import ListKind, response_type
from daemonkit.faults import Broken
from daemonkit.logs import fields

log = logging.getLogger(__name__)

MOST_ITEMS = 16_384
"""Maximum of items in a list of the delegate; a node has hundreds."""


TOO_MANY = f"it lists more than {MOST_ITEMS} items"
_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}
"""Size in bytes of the wire types of fixed size (protobuf.dev/programming-guides/encoding)."""
_SHORT = 64 * MOST_ITEMS
"""Size limit in bytes for decoding a list without counting its items first."""


class Checked:
    """Checks lists of one kind.  Bytes equal to the last list are not checked again."""

    def __init__(self, kind: ListKind, endpoint: str, ours: Callable[[str], bool]) -> None:
        self._kind = kind
        self._endpoint = endpoint
        self._ours = ours
        self._type = response_type(kind.method)
        self._stream_type = response_type(kind.stream)
        self._last: tuple[bytes, dict[str, Any]] = (b"", {})
        self._dropped: frozenset[str] = frozenset()

    def whole(self, untrusted: bytes) -> tuple[bytes, dict[str, Any]]:
        """Check a whole list: the bytes to pass on, and their items by key.

        Of items with the same key the first is kept.  Items without a key, and items with a key of ours, are
        removed; each change of this set is logged.  Broken: not this kind of list, or too many items.
        """
        if untrusted == self._last[0] and not any(map(self._ours, self._last[1])):
            return self._last
        data, items = self._read(untrusted, self._type, self._kind.field)
        if data is untrusted:
            self._last = (data, items)
        return data, items

    def batch(self, untrusted: bytes, seen: dict[str, Any]) -> list[Any]:
        """Check one message of a stream: returns its new items, and adds them to ``seen`` by key."""
        _, items = self._read(untrusted, self._stream_type, self._kind.stream_field)
        if len(seen) + len(items) > MOST_ITEMS:
            raise self._broken(TOO_MANY)
        new = {key: item for key, item in items.items() if key not in seen}
        seen.update(new)
        return list(new.values())

    def _read(self, untrusted: bytes, kind: Any, field: str) -> tuple[bytes, dict[str, Any]]:
        try:
            if has_more_items(untrusted):
                raise self._broken(TOO_MANY)
            readable, answer = read_message(kind, untrusted)
        except DecodeError:
            raise self._broken("its answer is not CRI's") from None
        found = getattr(answer, field)
        if len(found) > MOST_ITEMS:
            raise self._broken(TOO_MANY)
        key = self._kind.key
        items = {key(item): item for item in found}
        if len(items) == len(found) and "" not in items and not any(map(self._ours, items)):
            return readable, items
        return self._without(found, kind, field)

    def _without(self, found: Any, kind: Any, field: str) -> tuple[bytes, dict[str, Any]]:
        items: dict[str, Any] = {}
        dropped = []
        for item in found:
            key = self._kind.key(item)
            if not key or key in items or self._ours(key):
                dropped.append(key)
            else:
                items[key] = item
        if self._dropped != frozenset(dropped):
            self._dropped = frozenset(dropped)
            shown = ", ".join(f"{key:.64}" or "(none)" for key in sorted(self._dropped)[:5])
            log.warning(
                "the delegate lists what is ours, or twice, or without an id: left out",
                extra=fields(list=self._kind.method, count=len(dropped), ids=shown),
            )
        return kind(**{field: items.values()}).SerializeToString(), items

    def _broken(self, cause: str) -> Broken:
        return Broken(self._kind.method, self._endpoint, cause)


def has_more_items(untrusted: bytes) -> bool:
    """Whether a list has more than ``MOST_ITEMS`` items; DecodeError: not protobuf.

    An item of 2 bytes takes 100 after decoding: a list of 16 MiB could take a GiB.  Therefore the function
    only follows the lengths of the fields.
    """
    if len(untrusted) <= _SHORT:
        return False
    at = count = 0
    while at < len(untrusted):
        tag, at = _varint(untrusted, at)
        kind = tag & 7
        if kind in _FIXED:
            at += _FIXED[kind]
        elif kind in (_VARINT, _LENGTH):
            value, at = _varint(untrusted, at)
            at += value if kind == _LENGTH else 0
        else:
            raise DecodeError("CRI has no groups")
        count += 1
        if count > MOST_ITEMS:
            return True
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint of protobuf's wire format; returns its value, and the index after the varint."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise DecodeError("a number without end")


def read_message(kind: Any, untrusted: bytes) -> tuple[bytes, Any]:
    """Decode a message; returns bytes for every decoder, and the message.

    protobuf for Python treats a known field of a wrong type as unknown.  Decoders in Go may refuse the field,
    and the whole answer with it.  Therefore, if any field is unknown, all are checked.  DecodeError: another
    kind of message.
    """
    message = kind.FromString(untrusted)
    message.DiscardUnknownFields()
    if message.ByteSize() == len(untrusted):
        return untrusted, message
    message = kind.FromString(untrusted)
    if _mistyped(message):
        raise DecodeError("a field has another type")
    return message.SerializeToString(), message


def _mistyped(message: Message) -> bool:
    known, unknown = message.DESCRIPTOR.fields_by_number, UnknownFieldSet(message)
    if any(unknown[number].field_number in known for number in range(len(unknown))):
        return True
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue  # CRI's maps hold no messages
        if any(map(_mistyped, value if field.is_repeated else [value])):
            return True
    return False
