"""Caches encoded responses for frequent reads; a changed record is encoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from cri.state.records import Record

R = TypeVar("R", bound=Record)

# protobuf's wire format: field 1, length-delimited, the field of all of CRI's list and status responses
_TAG = b"\x0a"
_SPARE = 64


class RecordSource(Protocol[R]):
    """A source of records: ``cri.state.records``."""

    @property
    def version(self) -> int: ...

    def visible(self) -> list[R]: ...


class Rendered(Generic[R]):
    """A cache of records' encoded messages, by id."""

    def __init__(self, source: RecordSource[R], message: Callable[[R], Message]) -> None:
        self._source = source
        self._message = message
        self._fields: dict[str, tuple[R, bytes]] = {}
        self._whole = (-1, b"")
        self._limit = _SPARE

    def one(self, record: R) -> bytes:
        """The response with only this record's message."""
        known = self._fields.get(record.id)
        if known is None or known[0] is not record:
            known = (record, _field(self._message(record).SerializeToString()))
            self._fields[record.id] = known
            if len(self._fields) > self._limit:
                self._forget_gone()
        return known[1]

    def some(self, records: Iterable[R]) -> bytes:
        """The response with these records."""
        return b"".join(map(self.one, records))

    def every(self) -> bytes:
        """The response with all visible records."""
        version, response = self._whole
        if version != self._source.version:
            response = self.some(self._source.visible())
            self._whole = (self._source.version, response)
        return response

    def _forget_gone(self) -> None:
        there = {record.id for record in self._source.visible()}
        self._fields = {key: known for key, known in self._fields.items() if key in there}
        self._limit = 2 * len(self._fields) + _SPARE


def encoded(response: bytes) -> Any:
    """An encoded response in place of a message; ``daemonkit.rpc.interceptors`` sends its bytes unchanged."""
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
