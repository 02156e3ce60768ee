"""Inodes of a merged tree, their data left in the layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cri.images.layer import tarstream
from cri.images.layer.tarsparse import Extents


class Content(NamedTuple):
    """Where a file's bytes lie: in which layer's plain stream, from where, how many."""

    layer: int
    offset: int
    stored: int
    extents: Extents | None


class Inode:
    """One inode of a merged tree. content: where the data is, for a file that is not empty."""

    __slots__ = (
        "_load",
        "_names",
        "content",
        "device",
        "gid",
        "kind",
        "mode",
        "mtime",
        "serial",
        "size",
        "target",
        "uid",
        "xattrs",
    )

    def __init__(self, kind: bytes, serial: int) -> None:
        self.kind = kind
        self.serial = serial
        self.mode = 0o755
        self.uid = self.gid = self.mtime = self.size = 0
        self.target = b""
        self.device = (0, 0)
        self.xattrs: tuple[tuple[bytes, bytes], ...] = ()
        self.content: Content | None = None
        self._names: dict[bytes, Inode] | None = {} if kind == tarstream.DIR else None
        self._load: Callable[[], dict[bytes, Inode]] | None = None

    def load_later(self, load: Callable[[], dict[bytes, Inode]]) -> None:
        """Load a directory's children when they are first asked for."""
        self._names, self._load = None, load

    def described(self) -> Inode:
        """A copy of a directory's present attributes, without children: later layers may change them."""
        if not self.is_directory:
            return self
        copy = Inode(self.kind, self.serial)
        copy.mode, copy.uid, copy.gid, copy.mtime = self.mode, self.uid, self.gid, self.mtime
        copy.xattrs = self.xattrs
        return copy

    @property
    def is_directory(self) -> bool:
        """Whether it has names."""
        return self.kind == tarstream.DIR

    @property
    def names(self) -> dict[bytes, Inode]:
        """A directory's children."""
        if self._names is None:
            assert self._load is not None
            self._names, self._load = self._load(), None
        return self._names
