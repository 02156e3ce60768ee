"""Reads the files of a layout from a directory or a tar archive, compressed or not."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Protocol

from daemonkit.faults import Invalid, Missing
from images.bounds.cancel import CancelToken
from images.bounds.limits import ImageLimits
from images.image_errors import Corrupt, Oversized, Unpackable, oversized
from images.layer import compression, tarstream
from images.layer.layers import file_chunks
from images.layer.stream import PlainStream

CHUNK_BYTES = 1 << 20
MAX_MEMBERS = 20_000
_UNREAD: Mapping[bytes, str] = {b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"\x04\x22\x4d\x18": "lz4"}


class Files(Protocol):
    """Named files of a layout, in a directory or an archive."""

    subject: str

    def size(self, name: str) -> int | None:
        """A file's length in bytes; None: no such file."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a file; raises Missing."""


class DirectoryFiles:
    """A layout unpacked in a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._whole_root = root.resolve()
        self.subject = str(root)

    def size(self, name: str) -> int | None:
        """See Files; None for a file outside the directory, even if a name leads to the file."""
        path = self._root / name
        if path.is_symlink() or not path.is_file() or not path.resolve().is_relative_to(self._whole_root):
            return None
        return path.stat().st_size

    def chunks(self, name: str) -> Iterator[bytes]:
        """See Files."""
        if self.size(name) is None:
            raise Missing("import", self.subject, f"there is no {name}")
        handle = os.open(self._root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(handle, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


class ArchiveFiles:
    """A layout in a tar archive, read in place: only the names are held in memory.

    path: of the plain archive; stream: the same bytes, read once for the names.
    """

    def __init__(self, path: Path, stream: PlainStream, limits: ImageLimits) -> None:
        self._path = path
        self.subject = stream.subject
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}

        def weigh(headers: int) -> None:
            if headers > limits.memory_bytes:
                cause = f"its headers take more than {limits.memory_bytes} bytes of memory"
                raise oversized("import", self.subject, cause, "memory_bytes")

        for entry in tarstream.entries(stream, limits.header_bytes, weigh):
            self._add(entry)

    def _add(self, entry: tarstream.TarEntry) -> None:
        if len(self._members) + len(self._links) >= MAX_MEMBERS:
            raise Unpackable("import", self.subject, f"more than {MAX_MEMBERS} members")
        name = os.path.normpath(entry.name.decode("utf-8", "replace"))
        if entry.kind == tarstream.FILE and entry.extents is None:
            self._members[name] = (entry.offset, entry.stored)
        elif entry.kind == tarstream.SYMLINK:
            # docker save writes a repeated layer as a symlink.
            target = os.path.join(os.path.dirname(name), entry.link.decode("utf-8", "replace"))
            self._links[name] = os.path.normpath(target)

    def _member(self, name: str) -> tuple[int, int] | None:
        return self._members.get(self._links.get(name, name))

    def size(self, name: str) -> int | None:
        """See Files."""
        member = self._member(os.path.normpath(name))
        return None if member is None else member[1]

    def chunks(self, name: str) -> Iterator[bytes]:
        """See Files."""
        member = self._member(os.path.normpath(name))
        if member is None:
            raise Missing("import", self.subject, f"there is no {name}")
        offset, left = member
        with self._path.open("rb", buffering=0) as file:
            file.seek(offset)
            while left:
                chunk = file.read(min(CHUNK_BYTES, left))
                if not chunk:
                    raise Corrupt("import", self.subject, f"{name} ends early")
                left -= len(chunk)
                yield chunk


class _SeekingStream(PlainStream):
    """A stream over a file; skip() seeks instead of reading."""

    def __init__(self, file: BinaryIO, size: int, subject: str) -> None:
        super().__init__(iter(lambda: file.read(1 << 16), b""), subject)
        self._file = file
        self._size = size

    def skip(self, size: int) -> None:
        """See PlainStream."""
        held = len(self._chunk) - self._at
        if size <= held:
            super().skip(size)
            return
        if self.offset + size > self._size:
            raise Unpackable("import", self.subject, f"ends inside an entry, at byte {self._size}")
        self.offset += size
        self._file.seek(self.offset)
        self._chunk, self._at = b"", 0


def archive_files(path: Path, limits: ImageLimits, work: Path, token: CancelToken) -> ArchiveFiles:
    """The files of an archive; a compressed archive is unpacked into ``work`` first.

    Raises Invalid, Corrupt, Unpackable and Oversized, the latter beyond limits.unpacked_bytes.
    """
    subject = str(path)
    with path.open("rb", buffering=0) as file:
        head = file.read(8)
        if not compression.is_packed(head):
            _refuse_others(head, subject)
            file.seek(0)
            return ArchiveFiles(path, _SeekingStream(file, path.stat().st_size, subject), limits)
    with closing(_unpacking(path, limits, work, token)) as chunks:
        return ArchiveFiles(work, PlainStream(chunks, subject), limits)


def _unpacking(
    path: Path, limits: ImageLimits, work: Path, token: CancelToken
) -> Generator[bytes, None, None]:
    """Yield the plain bytes of a compressed archive, after writing each chunk to ``work``.

    Zeros become holes: the zeros of a hostile archive take no space.
    """
    size = 0
    with work.open("wb", buffering=0) as out:
        try:
            for chunk in token.passing(compression.plain(file_chunks(path, token), str(path))):
                size += len(chunk)
                if size > limits.unpacked_bytes:
                    cause = f"it becomes more than {limits.unpacked_bytes} bytes"
                    raise Oversized("import", str(path), cause, "see images.limits.unpacked_bytes")
                if chunk == bytes(len(chunk)):
                    out.seek(size)
                else:
                    _write_chunk(out, chunk)
                yield chunk
        finally:
            out.truncate(size)


def _write_chunk(out: BinaryIO, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[out.write(view) :]


def _refuse_others(head: bytes, subject: str) -> None:
    for magic, name in _UNREAD.items():
        if head.startswith(magic):
            raise Invalid("import", subject, f"is compressed with {name}", "only gzip and zstd are read")
