"""Long lists, answered from memory: the line of a record is encoded once, until the record changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from cri.registry import Record

R = TypeVar("R", bound=Record)

# protobuf's wire format: field 1, length-delimited; all of CRI's list responses have their items there
_TAG = b"\x0a"


class Rendered(Generic[R]):
    """Encoded lines by record."""

    def __init__(self, item: Callable[[R], Message]) -> None:
        self._item = item
        self._lines: dict[str, tuple[R, bytes]] = {}

    def response(self, records: Iterable[R], *, every: bool) -> bytes:
        """The whole response, encoded.  ``every``: these are all there are; other lines are forgotten."""
        known = self._lines
        kept: dict[str, tuple[R, bytes]] = {} if every else known
        parts = []
        for record in records:
            line = known.get(record.id)
            if line is None or line[0] is not record:
                line = (record, _field(self._item(record).SerializeToString()))
            kept[record.id] = line
            parts.append(line[1])
        self._lines = kept
        return b"".join(parts)


def encoded(response: bytes) -> Any:
    """Given to a handler's caller instead of a message: ``daemonkit.calls`` sends it as it is."""
    return response


def _field(data: bytes) -> bytes:
    return _TAG + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
