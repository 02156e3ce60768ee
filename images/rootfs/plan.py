"""Plans a filesystem of an image: the inodes, and the places of their bytes in the layers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from images.bounds.cancel import CancelToken
from images.bounds.limits import OPTIONAL, ImageLimits
from images.image_errors import Unpackable, oversized
from images.layer import packed, tarstream
from images.layer.inode import Inode, InodeRecord, recorded
from images.layer.losses import LossCount
from images.layer.packed import PackedRecords
from images.layer.tarstream import TarEntry
from images.rootfs import tree_cache
from images.rootfs.stream import ACCOUNT_FILES, NamedInodes
from images.rootfs.tree import MergedTree
from images.rootfs.tree_cache import PackedDirectories, TreeCache

# squashfs names owners by an index of 16 bits.
MAX_OWNERS = 0xFFFF
_NEVER = CancelToken()


class FilesystemPlan(NamedTuple):
    """The contents of the stream: files (topmost layer first, by offset), bare inodes, hard links.

    Files come first because the files of a layer can be written while the layer arrives. file_bytes: bytes
    copied out of the layers; accounts: the account files that differ from the filesystems below; None:
    deleted or unreadable. directories: see TreeCache; lost: see LossCount.named.
    """

    bare: NamedInodes
    files: Mapping[int, NamedInodes]
    links: PackedRecords
    file_bytes: int
    accounts: Mapping[str, Inode | None]
    directories: PackedDirectories
    root: InodeRecord
    serial: int
    spent: tuple[int, int]
    lost: Mapping[str, int]

    @property
    def order(self) -> list[int]:
        """The layers with files for this filesystem, in the order of the stream."""
        return sorted(self.files, reverse=True)

    def save(self, out: BinaryIO) -> None:
        """Write the stream's contents, for stream.load_contents()."""
        accounts = {path: None if node is None else recorded(node) for path, node in self.accounts.items()}
        packed.save(out, (self.order, accounts))
        for layer in self.order:
            self.files[layer].save(out)
        self.bare.save(out)
        self.links.save(out)


class _Files:
    """Files with data, sorted by place in the layers, in other words by serial."""

    def __init__(self) -> None:
        self._nodes: list[Inode] = []
        self._above: list[bytes] = []
        self._names: list[bytes] = []
        self._folders: dict[bytes, bytes] = {}

    def add(self, path: bytes, node: Inode) -> None:
        """Add a file under its first name."""
        above, slash, name = path.rpartition(b"/")
        folder = above + slash
        self._nodes.append(node)
        self._above.append(self._folders.setdefault(folder, folder))
        self._names.append(name)

    def sorted(self, last: int) -> tuple[dict[int, NamedInodes], int]:
        """Files by layer, in the order of the stream; and their stored bytes. last: the highest serial."""
        places = array("I", bytes(4 * (last + 1)))
        for place, node in enumerate(self._nodes, 1):
            places[node.serial] = place
        found: dict[int, NamedInodes] = {}
        size = 0
        for place in places:
            if place:
                node = self._nodes[place - 1]
                assert node.content is not None
                path = self._above[place - 1] + self._names[place - 1]
                found.setdefault(node.content.layer, NamedInodes()).add(path, node)
                size += node.content.stored
        return found, size


class Planner:
    """Applies the layers of one image, lowest first, and plans filesystems on request.

    The budget counts bytes of paths and of files.
    """

    def __init__(self, subject: str, limits: ImageLimits, below: Sequence[TreeCache] = ()) -> None:
        """below: the filesystems to continue from."""
        self._subject = subject
        self._limits = limits
        before = (tree_cache.root(below), below[-1].serial) if below else None
        self._tree = MergedTree(subject, limits, before)
        self._layers = sum(len(one.layers) for one in below)
        self._names = self._bytes = 0
        # More bytes of paths than this exceed one of two limits.
        self._least = min(limits.memory_bytes, limits.index_bytes or limits.memory_bytes)
        for one in below:
            self._spend(one.spent[0], one.spent[1])
        self._accounts: dict[str, Inode | None] = dict.fromkeys(ACCOUNT_FILES)
        self._changed_accounts()

    def apply(self, entries: Iterable[TarEntry]) -> None:
        """Apply one more layer; raises Unpackable, Oversized."""
        self._tree.apply(self._layers, entries)
        self._layers += 1

    def plan(self, token: CancelToken = _NEVER) -> FilesystemPlan:
        """Plan the filesystem of the layers applied since the last plan.

        Raises Unpackable, Oversized, Cancelled.
        """
        bare, files, links = NamedInodes(), _Files(), PackedRecords()
        # The main name of each inode with several names.
        first: dict[int, bytes] = {}
        owners: set[int] = set()
        directories: list[Inode] = []
        losses = LossCount()
        before = self._names, self._bytes
        for path, node in token.passing(self._tree.difference()):
            self._spend(len(path), 0)
            if self._tree.has_several_names(node):
                # All names of a file are in one filesystem; the layer has the data under the main name.
                main = first.get(node.serial)
                if main is None:
                    # Once for each inode: a file may have a million names, and a long main name.
                    main = first[node.serial] = self._tree.main_name(node) or path
                if main != path:
                    links.add((path, main))
                    continue
            if node.is_directory:
                directories.append(node)
            owners.update((node.uid, node.gid))
            losses.add(node.lost)
            if node.content is None:
                bare.add(path, node)
            else:
                self._spend(0, node.size)
                files.add(path, node)
        if len(owners) > MAX_OWNERS:
            cause = f"{len(owners)} owners, more than the {MAX_OWNERS} squashfs can hold"
            raise Unpackable("merge", self._subject, cause)
        spent = self._names - before[0], self._bytes - before[1]
        contents = PackedDirectories.of(directories)
        by_layer, file_bytes = files.sorted(self._tree.serial)
        accounts, root = self._changed_accounts(), recorded(self._tree.root)
        self._tree.rebase()
        return FilesystemPlan(
            bare,
            by_layer,
            links,
            file_bytes,
            accounts,
            contents,
            root,
            self._tree.serial,
            spent,
            losses.named(),
        )

    def _spend(self, names: int, size: int) -> None:
        self._names += names
        self._bytes += size
        if self._names <= self._least and self._bytes <= self._limits.unpacked_bytes:
            return
        for what, amount, key in (
            ("bytes of paths", self._names, "index_bytes"),
            ("bytes of paths", self._names, "memory_bytes"),
            ("bytes of files", self._bytes, "unpacked_bytes"),
        ):
            most = getattr(self._limits, key)
            if amount > most and (most or key not in OPTIONAL):
                raise oversized("merge", self._subject, f"more than {most} {what}", key)

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
