"""Keeps many small records in little memory: marshalled, and compressed in groups."""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Iterator
from typing import Any

import zstandard

# The last version of marshal whose bytes depend on the value alone; it is also the fastest for small values.
MARSHAL = 2
# What a group has before it is compressed, roughly: it is decompressed as a whole.
GROUP_BYTES = 64 << 10


class PackedRecords:
    """Tuples of numbers, bytes, None and such tuples, in the order in which they were added.

    An image may have millions of entries. As Python's own objects each takes about half a KiB, packed one of
    the usual kind takes 30 bytes.
    """

    def __init__(self) -> None:
        # All in one piece: so many small ones would leave as many holes between them.
        self._packed = bytearray()
        self._ends = array("Q")
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._count = 0

    def add(self, record: tuple[Any, ...]) -> None:
        """Add one record."""
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
        start = 0
        for end in self._ends:
            for data in expanded(self._packed[start:end]):
                yield marshal.loads(data)
            start = end
        for data in self._open:
            yield marshal.loads(data)


def squeezed(value: Any) -> bytes:
    """Marshal and compress a value."""
    data = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(marshal.dumps(value, MARSHAL))
    # What comes is the start of a buffer for the worst case, whose end would stay a hole.
    return bytes(memoryview(data))


def expanded(data: bytes | bytearray) -> Any:
    """Restore a value that this process has squeezed, or whose checksum was verified."""
    return marshal.loads(zstandard.ZstdDecompressor().decompress(data))
