"""What goes into one filesystem of an image, told from its tree, and where the bytes lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cri.images import tarstream
from cri.images.errors import Oversized, Unpackable
from cri.images.inode import Content, Node
from cri.images.settings import Limits
from cri.images.tree import Tree

# squashfs names owners by an index of 16 bits.
MAX_OWNERS = 0xFFFF
# Kept beside the filesystems, so that users can be looked up by name without opening them, and kernels told.
ACCOUNT_FILES = ("/etc/passwd", "/etc/group", "/kernel/metadata")


class Plan(NamedTuple):
    """What goes into the stream: bare inodes, then files by layer and offset, then further names.

    accounts: those account files that are others now than in the filesystems below; None: it is gone, or
    nothing that can be read.
    """

    bare: Sequence[tuple[bytes, Node]]
    files: Mapping[int, Sequence[tuple[bytes, Node, Content]]]
    links: Sequence[tuple[bytes, bytes]]
    accounts: Mapping[str, Node | None]


class Planner:
    """Applies the layers of one image, lowest first, and plans a filesystem whenever it is asked for one."""

    def __init__(self, subject: str, limits: Limits) -> None:
        self._subject = subject
        self._limits = limits
        self._tree = Tree(subject, limits.unpacked_bytes)
        self._layers = 0
        self._names_left = limits.index_bytes
        self._bytes_left = limits.unpacked_bytes
        self._accounts: dict[str, Node | None] = dict.fromkeys(ACCOUNT_FILES)

    def apply(self, entries: list[tarstream.Entry]) -> None:
        """One more layer; raises Unpackable, Oversized."""
        self._tree.apply(self._layers, entries)
        self._layers += 1

    def skip(self) -> None:
        """The layers since the last plan need none."""
        self._changed_accounts()
        self._tree.rebase()

    def plan(self) -> Plan:
        """The filesystem of the layers since the last one; raises Unpackable, Oversized."""
        bare: list[tuple[bytes, Node]] = []
        files: dict[int, list[tuple[bytes, Node, Content]]] = {}
        links: list[tuple[bytes, bytes]] = []
        first: dict[int, bytes] = {}
        owners: set[int] = set()
        for path, node in self._tree.difference():
            self._spend(len(path), 0)
            if node.serial in first:
                links.append((path, first[node.serial]))
                continue
            if node.serial >= 0:
                first[node.serial] = path
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
        return Plan(bare, files, links, accounts)

    def _spend(self, names: int, size: int) -> None:
        self._names_left -= names
        self._bytes_left -= size
        if self._names_left < 0:
            raise Oversized("merge", self._subject, f"paths of more than {self._limits.index_bytes} bytes")
        if self._bytes_left < 0:
            raise Oversized("merge", self._subject, f"more than {self._limits.unpacked_bytes} bytes of files")

    def _changed_accounts(self) -> dict[str, Node | None]:
        changed = {}
        for path in ACCOUNT_FILES:
            node = self._tree.find(path.encode())
            if node is not None and not self._is_account_file(node):
                node = None
            if node is not self._accounts[path]:
                self._accounts[path] = changed[path] = node
        return changed

    def _is_account_file(self, node: Node) -> bool:
        sparse = node.content is not None and node.content.extents is not None
        return node.kind == tarstream.FILE and node.size <= self._limits.account_file_bytes and not sparse
