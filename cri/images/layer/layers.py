"""One layer read through: its plain digest verified, its entries listed, its size bounded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cri.images.concurrency import CancelToken
from cri.images.errors import Corrupt, Oversized
from cri.images.layer import compression, tarstream
from cri.images.layer.stream import PlainStream
from cri.images.layer.tarstream import TarEntry
from cri.images.settings import ImageLimits

CHUNK = 1 << 20


class LayerIndex(NamedTuple):
    """What a layer holds; the data itself stays in the layer.

    plain_bytes: the length of its tar stream; weight: roughly what the entries take in memory, in bytes;
    verified: the layer has just been read, so that its bytes are known to be right.
    """

    entries: list[TarEntry]
    plain_bytes: int
    weight: int
    verified: bool = True


class LayerBudget:
    """What the layers of one image may cost together."""

    def __init__(self, subject: str, limits: ImageLimits) -> None:
        self._subject = subject
        self._left = {
            "entries": limits.entries,
            "bytes of names and attributes": limits.index_bytes,
            "unpacked bytes": limits.unpacked_bytes,
        }

    def spend(self, entries: int, weight: int, plain_bytes: int) -> None:
        """Count one layer or several (see LayerIndex); raises Oversized once the sum exceeds the limits."""
        for what, amount in zip(self._left, (entries, weight, plain_bytes), strict=True):
            self._left[what] -= amount
            if self._left[what] < 0:
                raise Oversized("unpack", self._subject, f"its layers have too many {what}")


class _Counted:
    """Chunks passing by, counted and hashed."""

    def __init__(self, chunks: Iterable[bytes], algorithm: str, check: Callable[[int], None]) -> None:
        self._chunks = chunks
        self._check = check
        self.hash = hashlib.new(algorithm)
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.bytes += len(chunk)
            self._check(self.bytes)
            self.hash.update(chunk)
            yield chunk


EntryReader = Callable[[TarEntry, PlainStream], None]
"""May read an entry's data from the stream, or a part of it."""


def read_layer(
    chunks: Iterable[bytes], size: int, diff_id: str, limits: ImageLimits, reader: EntryReader | None = None
) -> LayerIndex:
    """Read a compressed layer to its end and index it.

    size: its compressed length, which bounds the plain one by the configured ratio; reader: is given each
    entry. Raises Corrupt, Unpackable, Oversized, and what the reader raises.
    """
    most = min(limits.unpacked_bytes, max(limits.unpacked_floor_bytes, size * limits.ratio))

    def within(so_far: int) -> None:
        if so_far > most:
            raise Oversized("unpack layer", diff_id, f"{size} bytes become more than {most}")

    algorithm, _, wanted = diff_id.partition(":")
    counted = _Counted(compression.plain(chunks, diff_id), algorithm, within)
    stream = PlainStream(iter(counted), diff_id)
    found: list[TarEntry] = []
    weight = 0
    for entry in tarstream.entries(stream, limits.header_bytes):
        weight += _weight(entry)
        if len(found) >= limits.entries or weight > limits.index_bytes:
            most_of_it = f"more than {limits.entries} entries, or {limits.index_bytes} bytes of names"
            raise Oversized("unpack layer", diff_id, most_of_it)
        found.append(entry)
        if reader is not None:
            reader(entry, stream)
    stream.drain()
    if counted.hash.hexdigest() != wanted:
        raise Corrupt(
            "unpack layer", diff_id, "the plain bytes have another digest than the configuration says"
        )
    return LayerIndex(found, counted.bytes, weight)


def _weight(entry: TarEntry) -> int:
    weight = len(entry.name) + len(entry.link)
    if entry.xattrs:
        weight += sum(len(key) + len(value) for key, value in entry.xattrs)
    # Each part is a tuple of two numbers.
    return weight + 120 * len(entry.extents or ())


def file_chunks(path: Path, token: CancelToken) -> Iterator[bytes]:
    """A blob's bytes in chunks of CHUNK; raises Cancelled."""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            token.check()
            yield chunk


def plain_stream(path: Path, subject: str, token: CancelToken) -> PlainStream:
    """A kept blob's plain bytes, once more."""
    return PlainStream(compression.plain(file_chunks(path, token), subject), subject)
