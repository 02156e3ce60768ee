"""Inodes of a merged tree, their data left in the layers."""

from __future__ import annotations

from typing import NamedTuple

from cri.images import tarstream
from cri.images.tarsparse import Extents


class Content(NamedTuple):
    """Where a file's bytes lie: in which layer's plain stream, from where, how many."""

    layer: int
    offset: int
    stored: int
    extents: Extents | None


class Node:
    """One inode. children: names to inodes, of a directory; content: of a file that is not empty."""

    __slots__ = (
        "children",
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
        self.children: dict[bytes, Node] | None = {} if kind == tarstream.DIR else None

    def described(self) -> Node:
        """As it is now: a directory may be given other attributes by layers to come. It has no children."""
        if self.children is None:
            return self
        copy = Node(self.kind, self.serial)
        copy.mode, copy.uid, copy.gid, copy.mtime = self.mode, self.uid, self.gid, self.mtime
        copy.xattrs, copy.children = self.xattrs, None
        return copy

    @property
    def names(self) -> dict[bytes, Node]:
        """A directory's children."""
        assert self.children is not None
        return self.children
