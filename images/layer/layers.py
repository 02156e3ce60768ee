"""Reads a layer once: verifies its plain digest, lists its entries, bounds its size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from images.bounds.cancel import CancelToken
from images.bounds.limits import OPTIONAL, ImageLimits
from images.image_errors import Corrupt, oversized
from images.layer import compression, tarstream
from images.layer.packed import PackedRecords
from images.layer.stream import PlainStream
from images.layer.tarstream import TarEntry

CHUNK_BYTES = 1 << 20
_NEVER = CancelToken()


# Most memory of an entry and its inode, besides the bytes of names and attributes; a directory has a table of
# names, and each extended attribute is three objects.
ENTRY_BYTES, DIRECTORY_BYTES, XATTR_BYTES = 320, 640, 200


# Check the limits after each CHECK_ENTRIES entries, and after an entry with CHECK_BYTES of text.
CHECK_ENTRIES, CHECK_BYTES = 256, 4096


class EntryList:
    """The entries of a layer in their order, packed."""

    def __init__(self, records: PackedRecords | None = None) -> None:
        self._records = PackedRecords() if records is None else records

    def save(self, out: BinaryIO) -> None:
        """See PackedRecords.save()."""
        self._records.save(out)

    def add(self, entry: TarEntry) -> None:
        """Add an entry."""
        self._records.add(tuple(entry))

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[TarEntry]:
        return map(TarEntry._make, self._records)


class LayerIndex(NamedTuple):
    """The contents of a layer; the data itself stays in the layer.

    plain_bytes: the length of its tar stream; names: bytes of names, link targets and attributes; memory:
    most memory of the entries in a tree, in bytes.
    """

    entries: EntryList
    plain_bytes: int
    names: int
    memory: int

    @property
    def cost(self) -> Cost:
        """The layer's cost in its image's budget."""
        return Cost(len(self.entries), self.names, self.memory, self.plain_bytes)


class Cost(NamedTuple):
    """The cost of one or more layers in an image's budget."""

    entries: int = 0
    names: int = 0
    memory: int = 0
    plain_bytes: int = 0

    def plus(self, other: Iterable[int]) -> Cost:
        """The sum of both."""
        return Cost(*(mine + its for mine, its in zip(self, other, strict=True)))


class LayerBudget:
    """The budget of the layers of one image together."""

    def __init__(self, subject: str, limits: ImageLimits) -> None:
        self._subject = subject
        self._limits = limits
        self.spent = Cost()

    def spend(self, cost: Iterable[int]) -> None:
        """Count one or more layers; raises Oversized once the sum exceeds the limits."""
        self.spent = self.spent.plus(cost)
        check_cost(self.spent, self._subject, self._limits)


def check_cost(cost: Cost, subject: str, limits: ImageLimits) -> None:
    """Raise Oversized, naming the key, if a cost exceeds its limit."""
    for what, amount, key in (
        ("entries", cost.entries, "entries"),
        ("bytes of names and attributes", cost.names, "index_bytes"),
        ("bytes of memory to read its entries", cost.memory, "memory_bytes"),
        ("unpacked bytes", cost.plain_bytes, "unpacked_bytes"),
    ):
        most = getattr(limits, key)
        if amount > most and (most or key not in OPTIONAL):
            raise oversized("unpack", subject, f"its layers have more than {most} {what}", key)


class _Counted:
    """Counts and hashes passing chunks."""

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
"""May read an entry's data from the stream, in part or whole."""


def read_layer(
    chunks: Iterable[bytes],
    size: int,
    diff_id: str,
    limits: ImageLimits,
    reader: EntryReader | None = None,
    token: CancelToken = _NEVER,
) -> LayerIndex:
    """Read a compressed layer to the end and index its entries.

    size: compressed length, a bound on the plain length if a ratio is configured; reader: called with each
    entry; token: checked at each plain chunk, because a small compressed chunk may become gigabytes. Raises
    Corrupt, Unpackable, Oversized, Cancelled, and the reader's errors.
    """
    algorithm, _, wanted = diff_id.partition(":")
    plain = token.passing(compression.plain(chunks, diff_id))
    counted = _Counted(plain, algorithm, _bound(size, diff_id, limits))
    stream = PlainStream(iter(counted), diff_id)
    found = EntryList()
    names = memory = 0

    def weigh(headers: int) -> None:
        check_cost(Cost(memory=memory + headers), diff_id, limits)

    for entry in tarstream.entries(stream, limits.header_bytes, weigh):
        found.add(entry)
        text = _text_bytes(entry)
        names += text
        memory += text + (DIRECTORY_BYTES if entry.kind == tarstream.DIR else ENTRY_BYTES)
        memory += XATTR_BYTES * len(entry.xattrs)
        if text > CHECK_BYTES or len(found) % CHECK_ENTRIES == 0:
            check_cost(Cost(len(found), names, memory), diff_id, limits)
        if reader is not None:
            reader(entry, stream)
    check_cost(Cost(len(found), names, memory), diff_id, limits)
    stream.drain()
    if counted.hash.hexdigest() != wanted:
        raise Corrupt(
            "unpack layer", diff_id, "the plain bytes have another digest than the configuration says"
        )
    return LayerIndex(found, counted.bytes, names, memory)


def _bound(size: int, diff_id: str, limits: ImageLimits) -> Callable[[int], None]:
    """A check that bounds the number of plain bytes."""
    most, key = limits.unpacked_bytes, "unpacked_bytes"
    if limits.ratio and max(limits.unpacked_floor_bytes, size * limits.ratio) < most:
        most, key = max(limits.unpacked_floor_bytes, size * limits.ratio), "ratio"

    def within(so_far: int) -> None:
        if so_far > most:
            raise oversized("unpack layer", diff_id, f"{size} bytes become more than {most}", key)

    return within


def _text_bytes(entry: TarEntry) -> int:
    count = len(entry.name) + len(entry.link)
    if entry.xattrs:
        count += sum(len(key) + len(value) for key, value in entry.xattrs)
    # Each part is a tuple of two numbers.
    return count + 120 * len(entry.extents) if entry.extents else count


def file_chunks(path: Path, token: CancelToken) -> Iterator[bytes]:
    """A blob's bytes in chunks of CHUNK_BYTES; raises Cancelled."""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            token.check()
            yield chunk


def plain_stream(blob: BinaryIO, subject: str) -> PlainStream:
    """Decompress an open blob from the beginning."""
    return PlainStream(compression.plain(read_chunks(blob.fileno()), subject), subject)


def read_chunks(handle: int) -> Iterator[bytes]:
    """An open blob's bytes in chunks of CHUNK_BYTES; the handle's own offset stays."""
    at = 0
    while chunk := os.pread(handle, CHUNK_BYTES, at):
        yield chunk
        at += len(chunk)
