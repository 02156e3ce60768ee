"""Frames and answers of a worker, decoded strictly: each field by its type and its bounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Protocol

HEAD = Struct("<cQ")
"""Kind and length, in bytes, of a frame."""
ANSWER, FAULT, MOVED = b"A", b"F", b"M"
FILES = (b"0", b"1", b"2", b"3", b"4")
"""The kinds of pieces of files, by the numbers of the files."""
_NUMBER, _DATA = b"n", b"d"
_SIZE = 8
# As much as a pipe has: a larger buffer would be cut each time, and leave a hole.
_PIECE = 64 << 10
# Bytes of an answer beside what a caller expects in it.
_FIELDS_BYTES = 64 << 10
# Frames are taken by a thread that holds the daemon's interpreter: so many come free, and more for what they
# carry. A sound worker fills its frames.
_FREE, _FILE_BYTES, _MOVED_BYTES = 256, 4 << 10, 1 << 20


class Ended(Exception):
    """The other side has gone before a value was whole."""


class Garbled(Exception):
    """A worker answers with what no sound worker says."""


class Fields:
    """The fields of an answer, as the worker states them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def number(self, value: int) -> Fields:
        """Add a number."""
        self._parts.append(_NUMBER + value.to_bytes(_SIZE, "little"))
        return self

    def numbers(self, values: Sequence[int]) -> Fields:
        """Add a few numbers, after their count."""
        for value in (len(values), *values):
            self.number(value)
        return self

    def data(self, value: bytes) -> Fields:
        """Add bytes."""
        self._parts.append(_DATA + len(value).to_bytes(_SIZE, "little") + value)
        return self

    def joined(self) -> bytes:
        """All of them."""
        return b"".join(self._parts)


class WorkerAnswer:
    """The fields of an answer, as the daemon takes them: in their order, each once; raises Garbled."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, most: int) -> int:
        """A number of at most ``most``."""
        value = self._word(_NUMBER)
        if value > most:
            raise Garbled(f"{value} where at most {most} can be")
        return value

    def flag(self) -> bool:
        """A truth value."""
        return bool(self.number(1))

    def numbers(self, count: int, most: int) -> list[int]:
        """At most ``count`` numbers of at most ``most``."""
        return [self.number(most) for _ in range(self.number(count))]

    def data(self, most: int, least: int = 0) -> bytes:
        """At least ``least`` and at most ``most`` bytes."""
        size = self._word(_DATA)
        if not least <= size <= min(most, len(self._data) - self._at):
            raise Garbled(f"a field of {size} bytes")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self, most: int) -> str:
        """Text of at most ``most`` bytes, without control characters."""
        text = self.data(most).decode("utf-8", "replace")
        return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)

    def end(self) -> None:
        """Nothing more may come."""
        if self._at != len(self._data):
            raise Garbled("more fields than an answer has")

    def _word(self, kind: bytes) -> int:
        start = self._at + 1
        if self._data[self._at : start] != kind or len(self._data) < start + _SIZE:
            raise Garbled("another field than was asked for")
        self._at = start + _SIZE
        return int.from_bytes(self._data[start : self._at], "little")


class FilledFile(Protocol):
    """A file to be filled."""

    def write(self, data: bytes, /) -> int:
        """Write all of it."""
        ...


class JobOutcome:
    """What comes of a job, read from a worker's pipe.

    files: to be filled by the worker, in their order, with at most ``most`` bytes each; data: bytes that an
    answer may have; moved: is told of bytes that were copied, at most ``total``.
    """

    def __init__(
        self,
        files: Sequence[FilledFile] = (),
        most: int = 0,
        data: int = 0,
        moved: Callable[[int], None] = lambda _: None,
        total: int = 0,
    ) -> None:
        self._files = dict(zip(FILES, files, strict=False))
        self._left = dict.fromkeys(self._files, most)
        self._most = data + _FIELDS_BYTES
        self._moved = moved
        self._total = total
        self._frames = _FREE

    def take(self, handle: int) -> tuple[bytes, bytes] | None:
        """The kind and the bytes of an answer or a fault; None: the worker has ended; raises Garbled."""
        try:
            while True:
                kind, size = HEAD.unpack(exactly(handle, HEAD.size))
                self._spend(kind, size)
                if kind in self._files:
                    _copy(handle, size, self._files[kind])
                elif kind == MOVED:
                    self._move(int.from_bytes(exactly(handle, size), "little"))
                else:
                    return kind, exactly(handle, size)
        except Ended:
            return None

    def _spend(self, kind: bytes, size: int) -> None:
        self._frames -= 1
        if kind in self._left:
            self._left[kind] -= size
            self._frames += size // _FILE_BYTES
        most = self._left[kind] + size if kind in self._left else {MOVED: 8}.get(kind, self._most)
        known = kind in self._left or kind in (ANSWER, FAULT, MOVED)
        if not known or size > most or self._frames < 0:
            raise Garbled(f"a frame of kind {kind!r} with {size} bytes")

    def _move(self, size: int) -> None:
        self._total -= size
        self._frames += size // _MOVED_BYTES
        if self._total < 0:
            raise Garbled(f"{size} bytes more were copied than there are")
        self._moved(size)


def exactly(handle: int, size: int) -> bytes:
    """So many bytes; raises Ended."""
    pieces: list[bytes] = []
    while size:
        piece = os.read(handle, min(size, _PIECE))
        if not piece:
            raise Ended
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _copy(handle: int, size: int, file: FilledFile) -> None:
    while size:
        piece = os.read(handle, min(size, _PIECE))
        if not piece:
            raise Ended
        file.write(piece)
        size -= len(piece)
