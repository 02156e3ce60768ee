"""Caches merged trees on disk: the changes by a filesystem's layers, loaded one directory at a time.

A new filesystem over existing ones then needs no reading of their layers. Caches are optional: a missing or
damaged cache, or a cache of another version of this program or of Python, is rebuilt from the layers. Workers
write and read the caches; the daemon only keeps them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import BinaryIO

import zstandard

from images.layer.inode import Inode, InodeRecord, recorded, restored
from images.layer.packed import expanded, squeezed

_FORM = f"2 {sys.version_info[0]}.{sys.version_info[1]}"
# Directories per compressed group; a group is read as a whole.
_TOGETHER = 16
_READ_GROUPS = 8


class PackedDirectories:
    """The contents of directories by their serials: for each a list of (name, inode's record)."""

    def __init__(self, serials: bytes, groups: Sequence[bytes]) -> None:
        """serials: of the directories, ascending, 32 bits each; groups: _TOGETHER directories' lists each."""
        kept = self.groups = tuple(groups)
        self.serials = serials
        self._serials = array("I", serials)
        # The next lookup is often for a directory created beside the last.
        self._group = lru_cache(_READ_GROUPS)(lambda number: expanded(kept[number]))

    @classmethod
    def of(cls, directories: Sequence[Inode]) -> PackedDirectories:
        """The present contents of directories."""
        ordered = sorted(directories, key=lambda directory: directory.serial)
        groups = [
            squeezed([_listed(directory) for directory in ordered[start : start + _TOGETHER]])
            for start in range(0, len(ordered), _TOGETHER)
        ]
        return cls(array("I", (directory.serial for directory in ordered)).tobytes(), groups)

    def find(self, serial: int) -> list[tuple[bytes, InodeRecord]] | None:
        """The content of a directory; None: unknown here."""
        place = bisect_left(self._serials, serial)
        if place == len(self._serials) or self._serials[place] != serial:
            return None
        group, place = divmod(place, _TOGETHER)
        found: list[tuple[bytes, InodeRecord]] = self._group(group)[place]
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedDirectories):
            return NotImplemented
        return (self.serials, self.groups) == (other.serials, other.groups)


def _listed(directory: Inode) -> list[tuple[bytes, InodeRecord]]:
    return [(name, recorded(node)) for name, node in directory.names.items()]


@dataclass(frozen=True)
class TreeCache:
    """The part of a tree from one filesystem.

    layers: digests of the compressed layers; serial: of the tree's last inode; spent: see Planner, of these
    layers alone, then their Cost; root: the root directory's record.
    """

    chain_id: str
    layers: tuple[str, ...]
    serial: int
    spent: tuple[int, ...]
    root: InodeRecord
    directories: PackedDirectories


def pack(cache: TreeCache) -> bytes:
    """The bytes of a tree cache's file."""
    fields = (
        cache.chain_id,
        cache.layers,
        cache.serial,
        cache.spent,
        cache.root,
        cache.directories.serials,
        cache.directories.groups,
    )
    return squeezed((_FORM, *fields))


def load_tree(source: BinaryIO) -> TreeCache | None:
    """Load the output of pack(); None: unusable."""
    try:
        form, *fields, serials, groups = expanded(source.read())
        if form != _FORM:
            return None
        chain_id, layers, serial, spent, top = fields
        return TreeCache(chain_id, layers, serial, spent, top, PackedDirectories(serials, groups))
    except (OSError, zstandard.ZstdError, ValueError, EOFError, TypeError):
        return None


def root(trees: Sequence[TreeCache]) -> Inode:
    """The root of the merged tree of the filesystems, lowest first."""
    return _Loader([tree.directories for tree in reversed(trees)]).node(trees[-1].root)


class _Loader:
    """Makes inodes on demand; an inode with several names is made once."""

    def __init__(self, directories: Sequence[PackedDirectories]) -> None:
        """directories: topmost filesystem first, because it has a directory's latest contents."""
        self._directories = directories
        self._made: dict[int, Inode] = {}

    def node(self, record: InodeRecord) -> Inode:
        """The inode of a record."""
        serial = record[0]
        node = self._made.get(serial)
        if node is None:
            node = restored(record)
            if node.is_directory:
                # A directory has one name. No entry here: a reference cycle would keep it in memory.
                node.load_later(partial(self._load, serial))
            else:
                self._made[serial] = node
        return node

    def _load(self, serial: int) -> dict[bytes, Inode]:
        for directories in self._directories:
            found = directories.find(serial)
            if found is not None:
                return {name: self.node(record) for name, record in found}
        raise KeyError(serial)
