"""The contents of a filesystem's stream, as a worker gets them, and the pipe to write into.

A worker imports as little of ``rootfs`` as possible: each module costs its parent memory and time.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

from images.layer import packed
from images.layer.inode import Inode, InodeRecord, identity, recorded, restored
from images.layer.packed import MARSHAL, PackedRecords

PIPE_BYTES = 1 << 20
# Kept in the index, to look users up by name and to recognise kernel images without opening a filesystem.
ACCOUNT_FILES = ("/etc/passwd", "/etc/group", "/kernel/metadata")


class NamedInodes:
    """Inodes with their paths, in order, packed: the tree need not stay in memory."""

    def __init__(self, records: PackedRecords | None = None) -> None:
        self._records = PackedRecords() if records is None else records

    def save(self, out: BinaryIO) -> None:
        """See PackedRecords.save()."""
        self._records.save(out)

    def add(self, path: bytes, node: Inode) -> None:
        """Add an inode in its present state; iteration returns directories without names."""
        self._records.add((path, *recorded(node)))

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[tuple[bytes, Inode]]:
        for path, *record in self._records:
            yield path, restored(record)

    def records(self) -> Iterator[tuple[bytes, InodeRecord]]:
        """The paths, with the record of recorded()."""
        return ((record[0], record[1:]) for record in self._records)


class Contents(NamedTuple):
    """The contents of a stream, see FilesystemPlan."""

    bare: NamedInodes
    files: Mapping[int, NamedInodes]
    links: PackedRecords


def load_contents(source: BinaryIO) -> tuple[Contents, dict[str, Inode | None]]:
    """Read the output of FilesystemPlan.save(): the stream's contents, and the account files."""
    order, accounts = packed.load_packed(source)
    files = {layer: NamedInodes(PackedRecords.load(source)) for layer in order}
    bare, links = NamedInodes(PackedRecords.load(source)), PackedRecords.load(source)
    return Contents(bare, files, links), _nodes(accounts)


def _nodes(accounts: Mapping[str, InodeRecord | None]) -> dict[str, Inode | None]:
    return {path: None if record is None else restored(record) for path, record in accounts.items()}


class FilesDigest:
    """A digest of files of one layer, in the order of writing."""

    def __init__(self, diff_id: str) -> None:
        self._hash = hashlib.sha256(diff_id.encode() + b"\n")

    def add(self, path: bytes, record: InodeRecord) -> None:
        """The next file."""
        self._hash.update(marshal.dumps((path, identity(record)), MARSHAL))

    def value(self) -> bytes:
        """The digest of the files added until now."""
        return self._hash.digest()


class StreamPipe:
    """The pipe into the tool, on the side of the stream's writer."""

    def __init__(self, handle: int) -> None:
        """handle: of the pipe; close() is up to the caller."""
        self.handle = handle
        self._file = open(handle, "wb", buffering=PIPE_BYTES, closefd=False)
        self._broken = False

    def put(self, feed: Callable[[BinaryIO], None]) -> bool:
        """Let ``feed`` write a part of the stream; returns whether the tool still reads.

        Passes on feed's errors.
        """
        try:
            feed(self._file)
        except BrokenPipeError:
            self._broken = True
        return not self._broken

    def flush(self) -> bool:
        """Flush the buffer; returns whether the tool still reads."""
        return self.put(lambda file: file.flush())
