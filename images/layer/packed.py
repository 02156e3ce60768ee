"""Keeps many small records in little memory: marshalled, and compressed in groups.

Only workers use this module: marshal is unsafe on hostile bytes, and records come from hostile layers.
"""

from __future__ import annotations

import marshal
import os
from array import array
from collections.abc import Iterator
from typing import Any, BinaryIO

import zstandard

# The last version of marshal whose bytes depend on the value alone; also the fastest for small values.
MARSHAL = 2
# Approximate size of a group before compression; a group is decompressed as a whole.
GROUP_BYTES = 64 << 10
_SIZE_BYTES = 8


class PackedRecords:
    """Tuples of numbers, bytes, None and nested tuples, in insertion order.

    An image may have millions of entries. An entry takes about half a KiB as Python objects, and usually 30
    bytes packed.
    """

    def __init__(self) -> None:
        # One buffer: many small objects would fragment memory.
        self._packed = bytearray()
        self._ends = array("Q")
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._count = 0

    def save(self, out: BinaryIO) -> None:
        """Write all records."""
        save(out, (self._ends.tobytes(), self._open, self._count))
        out.write(self._packed)

    @classmethod
    def load(cls, source: BinaryIO) -> PackedRecords:
        """Read the output of save(); raises as load_packed() below.  Each group is checked when expanded."""
        made = cls()
        ends, made._open, made._count = load_packed(source)
        made._ends.frombytes(ends)
        made._packed = bytearray(_exactly(source, made._ends[-1] if made._ends else 0))
        made._open_bytes = sum(map(len, made._open))
        return made

    def check(self) -> None:
        """Raise ZstdError if a group is damaged."""
        for group in self._groups():
            zstandard.ZstdDecompressor().decompress(group)

    def add(self, record: tuple[Any, ...]) -> None:
        """Add a record."""
        data = marshal.dumps(record, MARSHAL)
        self._open.append(data)
        self._open_bytes += len(data)
        self._count += 1
        if self._open_bytes >= GROUP_BYTES:
            self._packed += squeezed(self._open)
            self._ends.append(len(self._packed))
            self._open, self._open_bytes = [], 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        for group in self._groups():
            for data in expanded(group):
                yield marshal.loads(data)
        for data in self._open:
            yield marshal.loads(data)

    def _groups(self) -> Iterator[bytearray]:
        start = 0
        for end in self._ends:
            yield self._packed[start:end]
            start = end


def squeezed(value: Any) -> bytes:
    """Marshal and compress a value."""
    data = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(marshal.dumps(value, MARSHAL))
    # Copy: compress() returns the start of a worst-case buffer, and would waste the rest.
    return bytes(memoryview(data))


def expanded(data: bytes | bytearray) -> Any:
    """Restore a squeezed value; raises ZstdError if damaged."""
    return marshal.loads(zstandard.ZstdDecompressor().decompress(data))


def save(out: BinaryIO, value: Any) -> None:
    """Write a value to a file."""
    data = squeezed(value)
    out.write(len(data).to_bytes(_SIZE_BYTES, "little") + data)


def load_packed(source: BinaryIO) -> Any:
    """Read the output of save(); raises OSError, ZstdError, ValueError, EOFError, TypeError."""
    return expanded(_exactly(source, int.from_bytes(_exactly(source, _SIZE_BYTES), "little")))


def _exactly(source: BinaryIO, size: int) -> bytes:
    # A damaged length must not allocate huge memory.
    data = source.read(size) if size <= os.fstat(source.fileno()).st_size else b""
    if len(data) != size:
        raise EOFError
    return data
