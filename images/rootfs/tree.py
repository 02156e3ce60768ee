"""The merged tree of an image: an index of names, without data. Layers are applied in turn.

The rules are from the OCI image-spec (layer.md). For gaps in the spec, the common behaviour of umoci and
containerd counts: ``..`` and absolute names stay inside the root, symlinks in a parent path are followed
inside the root, a whiteout hides only the content of lower layers, a hard link carries no metadata of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from images.bounds.limits import ImageLimits
from images.image_errors import Oversized, Unpackable, oversized
from images.layer import tarstream
from images.layer.inode import Content, Inode
from images.layer.layers import DIRECTORY_BYTES
from images.layer.tarstream import PATH_MAX, TarEntry
from images.rootfs.attributes import NAME_MAX, AttributeTable
from images.rootfs.baseline import Baseline
from images.rootfs.paths import cleaned

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
MAX_SYMLINKS = 255
# TokenBucket for an ordinary entry in limits.path_steps, generous. Without a limit, a few entries deep behind
# symlinks would take hours.
STEPS_PER_ENTRY = 32


class _Trail(NamedTuple):
    """A path: the directories from the root down, with their names."""

    nodes: tuple[Inode, ...]
    names: tuple[bytes, ...]


class MergedTree:
    """Layers are applied lowest first; difference() lists the result, or the changes since rebase()."""

    def __init__(self, subject: str, limits: ImageLimits, before: tuple[Inode, int] | None = None) -> None:
        """before: the root and last serial of a tree to continue from, as after rebase()."""
        self.subject = subject
        self._limits = limits
        self._attributes = AttributeTable(subject)
        self._serial = 0 if before is None else before[1]
        self._steps_left = limits.path_steps
        self._implied = 0
        self._layer = 0
        # The current layer's changes: all inodes with a higher serial than this, and older inodes by (serial
        # of the directory, name), ancestors included.
        self._before_layer = self._serial
        self._touched: set[tuple[int, bytes]] = set()
        self._last: tuple[bytes, _Trail] | None = None
        self._base = Baseline(-1 if before is None else self._serial)
        self.root = self._node(tarstream.DIR) if before is None else before[0]

    @property
    def serial(self) -> int:
        """The serial of the newest inode."""
        return self._serial

    def rebase(self) -> None:
        """Make the present state the base of difference()."""
        self._base = Baseline(self._serial)

    def difference(self) -> Iterator[tuple[bytes, Inode]]:
        """Every path (relative, the root b"") that changed since rebase(), with its inode.

        Without a rebase(), the whole tree; otherwise see Baseline.difference.
        """
        return self._base.difference(self.root)

    def has_several_names(self, node: Inode) -> bool:
        """Whether an inode gained a hard link after rebase()."""
        return self._base.has_several_names(node)

    def main_name(self, node: Inode) -> bytes | None:
        """See Baseline.main_name()."""
        return self._base.main_name(node, self.root)

    def described(self, entry: TarEntry) -> tuple[bytes, Inode]:
        """A file's path and inode, assuming that no other entry affects them."""
        node = Inode(tarstream.FILE, 0)
        self._describe(node, entry)
        return b"/".join(cleaned(entry.name)), node

    def apply(self, layer: int, entries: Iterable[TarEntry]) -> None:
        """Apply the entries of one layer; raises Unpackable, Oversized."""
        self._layer, self._before_layer = layer, self._serial
        for entry in entries:
            self._steps_left += STEPS_PER_ENTRY
            parts = cleaned(entry.name)
            if not parts:
                self._set_root(entry)
                continue
            base = parts[-1]
            if base.startswith(WHITEOUT):
                self._hide(entry, parts)
            else:
                self._place(entry, parts)
        self._touched.clear()

    def find(self, path: bytes) -> Inode | None:
        """The inode a process in the image would reach by this path, symlinks followed; None: nothing."""
        try:
            return self._follow(cleaned(path))
        except (Unpackable, Oversized):
            return None

    def _follow(self, parts: list[bytes]) -> Inode | None:
        trail = self._resolve(parts[:-1], create=False)
        hops = 0
        base = parts[-1]
        while trail is not None:
            node = trail.nodes[-1].names.get(base)
            if node is None or node.kind != tarstream.SYMLINK:
                return node
            hops += 1
            if hops > MAX_SYMLINKS:
                return None
            above = b"/" if node.target.startswith(b"/") else b"/".join(trail.names)
            parts = [part for part in (above + b"/" + node.target).split(b"/") if part not in (b"", b".")]
            if not parts or parts[-1] == b"..":
                return None
            base = parts.pop()
            trail = self._resolve(parts, create=False)
        return None

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            cause = f"its paths take more than {self._limits.path_steps} steps to follow"
            raise oversized("merge", self.subject, cause, "path_steps")

    def _node(self, kind: bytes) -> Inode:
        self._serial += 1
        return Inode(kind, self._serial)

    def _set_root(self, entry: TarEntry) -> None:
        if entry.kind != tarstream.DIR:
            raise self._bad(entry, "would replace the root directory")
        self._describe(self.root, entry)

    def _hide(self, entry: TarEntry, parts: list[bytes]) -> None:
        base = parts[-1]
        hidden = base[len(WHITEOUT) :]
        if hidden in (b"", b".", b".."):
            raise self._bad(entry, "is a whiteout of no name")
        trail = self._resolve(parts[:-1], create=False)
        if trail is None:
            return
        parent = trail.nodes[-1]
        self._base.change(*trail.nodes)
        if base == OPAQUE:
            self._spend(len(parent.names))
            for name in list(parent.names):
                self._remove_lower(parent, name)
        elif hidden in parent.names:
            self._remove_lower(parent, hidden)

    def _remove_lower(self, parent: Inode, name: bytes) -> None:
        """Remove the content of lower layers under this name; content of the current layer stays."""
        stack = [(parent, name)]
        while stack:
            parent, name = stack.pop()
            found = parent.names[name]
            if found.serial <= self._before_layer and (parent.serial, name) not in self._touched:
                del self._base.editing(parent)[name]
                self._last = None
            elif found.is_directory:
                self._spend(len(found.names))
                stack += [(found, below) for below in found.names]

    def _place(self, entry: TarEntry, parts: list[bytes]) -> None:
        base = parts[-1]
        if len(base) > NAME_MAX:
            raise self._bad(entry, f"has a name longer than {NAME_MAX}")
        trail = self._parent(entry, parts)
        parent = trail.nodes[-1]
        present = parent.names.get(base)
        if present is not None and entry.kind == tarstream.DIR == present.kind:
            node = present
        else:
            if present is not None:
                del self._base.editing(parent)[base]
                self._last = None
            node = self._link_target(entry) if entry.kind == tarstream.LINK else self._node(entry.kind)
            self._base.editing(parent)[base] = node
        if entry.kind != tarstream.LINK:
            self._describe(node, entry)
        self._spend(len(trail.nodes))
        self._base.change(*trail.nodes, node)
        self._touch(trail, node, base)

    def _touch(self, trail: _Trail, node: Inode, base: bytes) -> None:
        below = node
        for above, name in zip(trail.nodes[::-1], (base, *trail.names[::-1]), strict=True):
            if below.serial <= self._before_layer:
                self._touched.add((above.serial, name))
            below = above

    def _parent(self, entry: TarEntry, parts: list[bytes]) -> _Trail:
        key = b"/".join(parts[:-1])
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        trail = self._resolve(parts[:-1], create=True)
        if trail is None:
            raise self._bad(entry, "lies under what is not a directory")
        if sum(map(len, trail.names)) + len(trail.names) + len(parts[-1]) >= PATH_MAX:
            raise self._bad(entry, f"has a path longer than {PATH_MAX}")
        self._last = (key, trail)
        return trail

    def _link_target(self, entry: TarEntry) -> Inode:
        parts = cleaned(entry.link)
        trail = self._resolve(parts[:-1], create=False)
        node = trail.nodes[-1].names.get(parts[-1]) if trail is not None and parts else None
        if node is None:
            raise self._bad(
                entry, f"is a hard link to {tarstream.shown_name(entry.link)}, which is not there"
            )
        if node.kind == tarstream.DIR:
            raise self._bad(entry, f"is a hard link to the directory {tarstream.shown_name(entry.link)}")
        assert trail is not None
        self._base.link(node, b"/".join((*trail.names, parts[-1])))
        return node

    def _resolve(self, parts: list[bytes], create: bool) -> _Trail | None:
        """The directory at a path; None: missing, or a parent is no directory.

        create: make missing directories (owned by root, mode 0755), as every unpacker does. Raises Unpackable
        for a loop of symlinks.
        """
        nodes: list[Inode | None] = [self.root]
        names: list[bytes] = []
        pending = parts[::-1]
        self._spend(len(pending))
        hops = 0
        while pending:
            part = pending.pop()
            if part == b"..":
                if names:
                    nodes.pop()
                    names.pop()
                continue
            above = nodes[-1]
            node = above.names.get(part) if above is not None else None
            if node is not None and node.kind == tarstream.SYMLINK:
                hops += 1
                self._spend(len(node.target))
                if hops > MAX_SYMLINKS:
                    where = tarstream.shown_name(b"/".join(parts))
                    raise Unpackable("merge", self.subject, f"too many symlinks on the way to {where}")
                if node.target.startswith(b"/"):
                    nodes, names = [self.root], []
                pending += [p for p in reversed(node.target.split(b"/")) if p not in (b"", b".")]
                continue
            if (node is None and not create) or (node is not None and node.kind != tarstream.DIR):
                return None
            nodes.append(node)
            names.append(part)
        return _Trail(tuple(self._made(nodes, names)), tuple(names))

    def _made(self, nodes: list[Inode | None], names: list[bytes]) -> Iterator[Inode]:
        above = self.root
        yield above
        for node, name in zip(nodes[1:], names, strict=True):
            if node is None:
                node = self._implied_directory()
                self._base.editing(above)[name] = node
            yield node
            above = node

    def _implied_directory(self) -> Inode:
        self._implied += DIRECTORY_BYTES
        if self._implied > self._limits.memory_bytes:
            cause = (
                f"directories that no entry names take more than {self._limits.memory_bytes} bytes of memory"
            )
            raise oversized("merge", self.subject, cause, "memory_bytes")
        return self._node(tarstream.DIR)

    def _describe(self, node: Inode, entry: TarEntry) -> None:
        attributes, lost = self._attributes.of(entry)
        node.describe(attributes, entry.mtime, lost)
        if entry.kind == tarstream.SYMLINK:
            if not entry.link or len(entry.link) >= PATH_MAX:
                raise self._bad(entry, "is a symlink with an empty or overlong target")
            node.point(entry.link)
        elif entry.kind in (tarstream.CHAR, tarstream.BLOCKDEV):
            node.stand_for(entry.device)
        elif entry.kind == tarstream.FILE and entry.size:
            most = self._limits.unpacked_bytes
            if entry.size > most:
                cause = f"a file of {entry.size} bytes, more than {most}"
                raise oversized("merge", self.subject, cause, "unpacked_bytes")
            node.fill(Content(self._layer, entry.offset, entry.stored, entry.extents), entry.size)

    def _bad(self, entry: TarEntry, cause: str) -> Unpackable:
        return Unpackable("merge", self.subject, f"{tarstream.shown_name(entry.name)} {cause}")
