"""Merged trees on disk: what a filesystem's layers changed, loaded one directory at a time.

They spare reading the layers of filesystems that are here when another one is built over them. Nothing
depends on them: one that is missing, damaged, or of another version of this program or of Python is made
again from the layers.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

from cri.images.layer import tarstream
from cri.images.layer.inode import Content, Inode

# The last version whose bytes depend on the value alone.
_MARSHAL = 2
_FORM = f"1 {sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class TreeCache:
    """A filesystem's part of a tree.

    layers: digests of the compressed layers it was made from; serial: of the tree's last inode; spent: see
    Planner, of these layers alone; root: the root directory's attributes; directories: by their serials, what
    is in them, packed.
    """

    chain_id: str
    layers: tuple[str, ...]
    serial: int
    spent: tuple[int, ...]
    root: tuple[Any, ...]
    directories: Mapping[int, bytes]


def packed(directories: Iterable[Inode]) -> dict[int, bytes]:
    """The present contents of directories, packed, by their serials."""
    return {
        directory.serial: _dumps([(name, *attributes(node)) for name, node in directory.names.items()])
        for directory in directories
    }


def pack(cache: TreeCache) -> bytes:
    """The bytes of a tree cache's file."""
    fields = (
        cache.chain_id,
        cache.layers,
        cache.serial,
        cache.spent,
        cache.root,
        dict(cache.directories),
    )
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(_dumps((_FORM, *fields)))


def load(path: Path) -> TreeCache | None:
    """What pack() made; None: it is missing or unusable.

    The file is this program's own, in a folder of root's, and its checksum tells what a disk did to it.
    """
    try:
        form, *fields = marshal.loads(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
        return TreeCache(*fields) if form == _FORM else None
    except (OSError, zstandard.ZstdError, ValueError, EOFError, TypeError):
        return None


def root(trees: Sequence[TreeCache]) -> Inode:
    """The root of the tree that the filesystems make together, lowest first."""
    directories: dict[int, bytes] = {}
    for cache in trees:
        directories.update(cache.directories)
    return _Loader(directories).node(trees[-1].root)


def _dumps(value: Any) -> bytes:
    return marshal.dumps(value, _MARSHAL)


class _Loader:
    """Makes inodes when they are asked for; an inode with several names is made once."""

    def __init__(self, directories: Mapping[int, bytes]) -> None:
        self._directories = directories
        self._made: dict[int, Inode] = {}

    def node(self, record: Sequence[Any]) -> Inode:
        """The inode of a record."""
        serial, kind, mode, uid, gid, mtime, size, target, device, xattrs, content = record
        node = self._made.get(serial)
        if node is None:
            node = self._made[serial] = Inode(kind, serial)
            node.mode, node.uid, node.gid, node.mtime, node.size = mode, uid, gid, mtime, size
            node.target, node.device, node.xattrs = target, device, xattrs
            node.content = Content(*content) if content is not None else None
            if kind == tarstream.DIR:
                node.load_later(partial(self._load, serial))
        return node

    def _load(self, serial: int) -> dict[bytes, Inode]:
        return {name: self.node(record) for name, *record in marshal.loads(self._directories[serial])}


def attributes(node: Inode) -> tuple[Any, ...]:
    """Attributes of an inode, as TreeCache.root has them, and a packed directory after each name."""
    content = tuple(node.content) if node.content is not None else None
    return (
        node.serial,
        node.kind,
        node.mode,
        node.uid,
        node.gid,
        node.mtime,
        node.size,
        node.target,
        node.device,
        node.xattrs,
        content,
    )
