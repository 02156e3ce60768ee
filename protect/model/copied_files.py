"""Copies of small host files in zones: requests, results of the search, parts for the transfer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

FileId = tuple[int, int]
"""st_dev and st_ino.  Unique while a process holds the file."""


@dataclass(frozen=True, slots=True)
class FileVolume:
    """A directory or file for the workload's mounts at ``volumes/<name>``, copied or shared.

    ``volume``: the copy's name in the zone; "": the copy belongs to the workload.  ``keep_current``: copy
    later changes on the host.  ``writable``: the zone may change its copy.  ``map_ids``: map ids by the
    zone's user namespace.  ``return_bytes``: bytes at the file's end to write back after the workload's end,
    if the volume is writable.  The file is below the directory ``beneath`` ("": the root), without symbolic
    links between.
    """

    name: str
    host_path: str
    volume: str = ""
    keep_current: bool = False
    writable: bool = False
    map_ids: bool = False
    return_bytes: int = 0
    beneath: str = ""
    file: FileId = (0, 0)
    """The file found at the path."""

    @property
    def is_returned(self) -> bool:
        """Whether protectd writes bytes from the zone to the host's file."""
        return self.writable and self.return_bytes > 0


class FileKind(Enum):
    """Type of an entry."""

    REGULAR = "regular"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file as found; ``path``: relative, "" for the root; ``target``: of a symbolic link."""

    path: str
    kind: FileKind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    target: bytes = b""
    file: FileId = (0, 0)
    mtime_ns: int = 0


@dataclass(slots=True)
class FileTree:
    """A version of a volume on the host: its entries in the order of their creation.

    ``size_bytes``: size in memory.  ``keep``: the names in the root.  ``root``: an open descriptor.
    """

    version: str
    entries: Sequence[FileEntry]
    keep: Sequence[str]
    size_bytes: int
    root: int
    file: FileId

    def close(self) -> None:
        root, self.root = self.root, -1
        if root >= 0:
            os.close(root)


class FileWatch(Protocol):
    """Reports changes until closed."""

    @property
    def alive(self) -> bool:
        """False once the watched file is gone."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class FoundFiles:
    """A tree, and the watch if requested; else neither, and the reason against a copy."""

    tree: FileTree | None = None
    watch: FileWatch | None = None
    reason: str = ""

    @property
    def file(self) -> FileId:
        """The file at the path."""
        return self.tree.file if self.tree else (0, 0)

    def close(self) -> None:
        """Close the tree.  Idempotent.  The caller closes the watch."""
        if self.tree is not None:
            self.tree.close()


@dataclass(frozen=True, slots=True)
class WantedFiles:
    """A volume to find; ``changed``, if given, is called at each later change."""

    volume: FileVolume
    changed: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class FileChunk:
    """An entry, or ``count`` bytes of a file from ``offset`` on; ``more``: another chunk follows."""

    entry: FileEntry
    offset: int = 0
    count: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a version for a zone, as in channel.v1 PutFiles; one content for each chunk."""

    owner: str
    volume: str
    version: str
    first: bool
    last: bool
    size_bytes: int
    map_ids: bool
    chunks: Sequence[FileChunk]
    contents: Sequence[bytes]
    keep: Sequence[str] = field(default=())


class FilesChanged(Exception):
    """The files changed after the search; search again."""
