"""What goes into one filesystem of an image, and where in the layers its bytes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cri.images.errors import Oversized, Unpackable
from cri.images.layer import tarstream
from cri.images.layer.inode import Content, Inode
from cri.images.rootfs import tree_cache
from cri.images.rootfs.tree import MergedTree
from cri.images.rootfs.tree_cache import TreeCache
from cri.images.settings import ImageLimits

# squashfs names owners by an index of 16 bits.
MAX_OWNERS = 0xFFFF
# Kept in the index, to look users up by name and to recognise kernel images without opening a filesystem.
ACCOUNT_FILES = ("/etc/passwd", "/etc/group", "/kernel/metadata")


class FilesystemPlan(NamedTuple):
    """What goes into the stream: files by layer, the topmost first, and offset; bare inodes; further names.

    Files come first so that those of a layer can be written while it arrives.

    accounts: those account files that are others now than in the filesystems below; None: it is gone, or
    nothing that can be read. directories: see TreeCache.
    """

    bare: Sequence[tuple[bytes, Inode]]
    files: Mapping[int, Sequence[tuple[bytes, Inode, Content]]]
    links: Sequence[tuple[bytes, bytes]]
    accounts: Mapping[str, Inode | None]
    directories: Mapping[int, bytes]
    root: tuple[Any, ...]
    serial: int
    spent: tuple[int, int]

    @property
    def order(self) -> list[int]:
        """The layers that files come from, in the order of the stream."""
        return sorted(self.files, reverse=True)

    @property
    def file_bytes(self) -> int:
        """What is copied out of the layers."""
        return sum(content.stored for files in self.files.values() for _, _, content in files)


class Planner:
    """Applies the layers of one image, lowest first, and plans a filesystem when asked for one.

    What is spent: bytes of paths, and of files.
    """

    def __init__(self, subject: str, limits: ImageLimits, below: Sequence[TreeCache] = ()) -> None:
        """below: the filesystems to continue from."""
        self._subject = subject
        self._limits = limits
        before = (tree_cache.root(below), below[-1].serial) if below else None
        self._tree = MergedTree(subject, limits.unpacked_bytes, before)
        self._layers = sum(len(one.layers) for one in below)
        self._names = self._bytes = 0
        for one in below:
            self._spend(one.spent[0], one.spent[1])
        self._accounts: dict[str, Inode | None] = dict.fromkeys(ACCOUNT_FILES)
        self._changed_accounts()

    def apply(self, entries: list[tarstream.TarEntry]) -> None:
        """Apply one more layer; raises Unpackable, Oversized."""
        self._tree.apply(self._layers, entries)
        self._layers += 1

    def plan(self) -> FilesystemPlan:
        """Plan the filesystem of the layers applied since the last one; raises Unpackable, Oversized."""
        bare: list[tuple[bytes, Inode]] = []
        files: dict[int, list[tuple[bytes, Inode, Content]]] = {}
        links: list[tuple[bytes, bytes]] = []
        first: dict[int, bytes] = {}
        owners: set[int] = set()
        directories: list[Inode] = []
        before = self._names, self._bytes
        for path, node in self._tree.difference():
            self._spend(len(path), 0)
            if node.serial in first:
                links.append((path, first[node.serial]))
                continue
            main = self._tree.main_name(node)
            if main is not None and main != path:
                # All names of a file are in one filesystem; under this one its layer has the data.
                links.append((path, main))
                continue
            if node.serial >= 0:
                first[node.serial] = path
            if node.is_directory:
                directories.append(node)
            owners |= {node.uid, node.gid}
            self._spend(0, node.size)
            if node.content is None:
                bare.append((path, node.described()))
            else:
                files.setdefault(node.content.layer, []).append((path, node, node.content))
        if len(owners) > MAX_OWNERS:
            cause = f"{len(owners)} owners, more than the {MAX_OWNERS} squashfs can hold"
            raise Unpackable("merge", self._subject, cause)
        for found in files.values():
            found.sort(key=lambda file: file[2].offset)
        accounts = self._changed_accounts()
        self._tree.rebase()
        spent = self._names - before[0], self._bytes - before[1]
        root = tree_cache.attributes(self._tree.root)
        return FilesystemPlan(
            bare, files, links, accounts, tree_cache.packed(directories), root, self._tree.serial, spent
        )

    def _spend(self, names: int, size: int) -> None:
        self._names += names
        self._bytes += size
        if self._names > self._limits.index_bytes:
            raise Oversized("merge", self._subject, f"paths of more than {self._limits.index_bytes} bytes")
        if self._bytes > self._limits.unpacked_bytes:
            raise Oversized("merge", self._subject, f"more than {self._limits.unpacked_bytes} bytes of files")

    def _changed_accounts(self) -> dict[str, Inode | None]:
        changed = {}
        for path in ACCOUNT_FILES:
            node = self._tree.find(path.encode())
            if node is not None and not self._is_account_file(node):
                node = None
            if node is not self._accounts[path]:
                self._accounts[path] = changed[path] = node
        return changed

    def _is_account_file(self, node: Inode) -> bool:
        sparse = node.content is not None and node.content.extents is not None
        return node.kind == tarstream.FILE and node.size <= self._limits.account_file_bytes and not sparse
