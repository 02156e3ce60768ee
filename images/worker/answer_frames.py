"""Frames from a worker, with strict checks of kind and length."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Protocol

from images.bounds.fields import Malformed

HEAD = Struct("<cQ")
"""Kind and length, in bytes, of a frame."""
ANSWER, FAULT, MOVED = b"A", b"F", b"M"
FILES = (b"0", b"1", b"2", b"3", b"4")
"""The kinds of pieces of files, by the numbers of the files."""
# The size of a pipe: a larger buffer would be shrunk each time, and fragment memory.
_PIECE_BYTES = 64 << 10
# Bytes of an answer beyond the data that the caller expects.
_FIELDS_BYTES = 64 << 10
# A thread that takes frames holds the interpreter lock of the daemon. Frames therefore have a budget: _FREE
# frames, and one more for each _FILE_BYTES or _MOVED_BYTES of content. A sound worker fills its frames.
_FREE, _FILE_BYTES, _MOVED_BYTES = 256, 4 << 10, 1 << 20


class Ended(Exception):
    """The other side has ended in the middle of a value."""


class FilledFile(Protocol):
    """A file to be filled."""

    def write(self, data: bytes, /) -> int:
        """Write all data."""
        ...


class JobOutcome:
    """The results of a job, read from a worker's pipe.

    files: for the worker to fill, in order, with at most ``most`` bytes each; data: most bytes of an answer;
    moved: called with numbers of copied bytes, at most ``total`` in all.
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
        """The kind and the bytes of an answer or a fault; None: the worker has ended; raises Malformed."""
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
            raise Malformed(f"a frame of kind {kind!r} with {size} bytes")

    def _move(self, size: int) -> None:
        self._total -= size
        self._frames += size // _MOVED_BYTES
        if self._total < 0:
            raise Malformed(f"{size} bytes more were copied than there are")
        self._moved(size)


def exactly(handle: int, size: int) -> bytes:
    """Read exactly ``size`` bytes; raises Ended."""
    pieces: list[bytes] = []
    while size:
        piece = os.read(handle, min(size, _PIECE_BYTES))
        if not piece:
            raise Ended
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _copy(handle: int, size: int, file: FilledFile) -> None:
    while size:
        piece = os.read(handle, min(size, _PIECE_BYTES))
        if not piece:
            raise Ended
        file.write(piece)
        size -= len(piece)
