"""Small files of the host that zones have copies of: what is wanted, what was found, how it is put."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

FileId = tuple[int, int]
"""st_dev and st_ino: nobody else's while somebody holds the file."""


@dataclass(frozen=True, slots=True)
class FileVolume:
    """A directory or file that a workload's mounts find at ``volumes/<name>``, copied or shared.

    ``volume`` is the zone's name of the copy, "" for one of the workload's own.  ``keep_current``: changes on
    the host are copied.  ``writable``: the zone may change its copy.  ``map_ids``: by the zone's user
    namespace.  ``return_bytes``: so many bytes of the file's end are written back when it has ended, if the
    volume is writable.  The file is below the directory ``beneath`` ("": the root); no symbolic link leads
    from there to the file.
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
    """What was at the path, once it has been found."""

    @property
    def is_returned(self) -> bool:
        """Whether bytes of the zone are written to the host's file."""
        return self.writable and self.return_bytes > 0


class FileKind(Enum):
    """What an entry is."""

    REGULAR = "regular"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file as it was seen; ``path`` is relative, "" for the root.  ``target`` is a symbolic link's."""

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
    """A version of a volume on the host: its entries in the order in which they are to be made.

    ``size_bytes``: what it takes in memory.  ``keep``: the names in its root.  ``root`` is a descriptor,
    which goes with ``close``.
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
    """Tells of changes until it is closed."""

    @property
    def alive(self) -> bool:
        """False when what it watched is gone."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class FoundFiles:
    """A tree, with a watch if one was wanted; or, with neither, why there is no copy to be made."""

    tree: FileTree | None = None
    watch: FileWatch | None = None
    reason: str = ""

    @property
    def file(self) -> FileId:
        """What is at the path."""
        return self.tree.file if self.tree else (0, 0)

    def close(self) -> None:
        """Close the tree; again is fine.  The watch is its taker's."""
        if self.tree is not None:
            self.tree.close()


@dataclass(frozen=True, slots=True)
class WantedFiles:
    """A volume to be found; ``changed``, if it is to be watched, is called at each change from then on."""

    volume: FileVolume
    changed: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class FileChunk:
    """An entry, or of a file the ``count`` bytes from ``offset`` on; ``more``: the rest comes later."""

    entry: FileEntry
    offset: int = 0
    count: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a version on its way to a zone, as channel.v1 PutFiles has it; contents as the chunks."""

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
    """The files are not any more what was found: look again."""
