"""What the stream of a filesystem is made of, as a worker gets it, and the pipe that it is written into.

A worker imports no more of ``rootfs`` than it needs: each module is memory and time of its parent.
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
    """Inodes with their paths, in order, packed: none of them keeps the tree in memory."""

    def __init__(self, records: PackedRecords | None = None) -> None:
        self._records = PackedRecords() if records is None else records

    def save(self, out: BinaryIO) -> None:
        """See PackedRecords.save()."""
        self._records.save(out)

    def add(self, path: bytes, node: Inode) -> None:
        """Add an inode as it is now; a directory comes back without its names."""
        self._records.add((path, *recorded(node)))

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[tuple[bytes, Inode]]:
        for path, *record in self._records:
            yield path, restored(record)

    def records(self) -> Iterator[tuple[bytes, InodeRecord]]:
        """Their paths, and what recorded() says of them."""
        return ((record[0], record[1:]) for record in self._records)


class Contents(NamedTuple):
    """What a stream is made of: see FilesystemPlan."""

    bare: NamedInodes
    files: Mapping[int, NamedInodes]
    links: PackedRecords


def load_contents(source: BinaryIO) -> tuple[Contents, dict[str, Inode | None]]:
    """Read what FilesystemPlan.save() wrote: for the stream, and the account files."""
    order, accounts = packed.load(source)
    files = {layer: NamedInodes(PackedRecords.load(source)) for layer in order}
    bare, links = NamedInodes(PackedRecords.load(source)), PackedRecords.load(source)
    return Contents(bare, files, links), _nodes(accounts)


def _nodes(accounts: Mapping[str, InodeRecord | None]) -> dict[str, Inode | None]:
    return {path: None if record is None else restored(record) for path, record in accounts.items()}


class FilesDigest:
    """A digest of files of one layer, as they are written one after another."""

    def __init__(self, diff_id: str) -> None:
        self._hash = hashlib.sha256(diff_id.encode() + b"\n")

    def add(self, path: bytes, record: InodeRecord) -> None:
        """The next file."""
        self._hash.update(marshal.dumps((path, identity(record)), MARSHAL))

    def value(self) -> bytes:
        """The digest of those added so far."""
        return self._hash.digest()


class StreamPipe:
    """The pipe into the tool, as whoever writes the tar stream has it."""

    def __init__(self, handle: int) -> None:
        """handle: of the pipe, which stays open."""
        self.handle = handle
        self._file = open(handle, "wb", buffering=PIPE_BYTES, closefd=False)
        self._broken = False

    def put(self, feed: Callable[[BinaryIO], None]) -> bool:
        """Let ``feed`` write a part of the stream; whether the tool still reads. Raises what feed raises."""
        try:
            feed(self._file)
        except BrokenPipeError:
            self._broken = True
        return not self._broken

    def flush(self) -> bool:
        """Write what is held back; whether the tool has read all so far, or will."""
        return self.put(lambda file: file.flush())
