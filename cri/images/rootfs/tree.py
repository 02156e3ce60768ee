"""The merged tree: an index of names that layers are applied to one over another, without data.

The rules are those of the OCI image-spec (layer.md) where it speaks, and where it does not, what umoci and
containerd have in common: ``..`` and absolute names stay inside the root, symlinks in a parent path are
followed inside the root, a whiteout only hides what lower layers brought, a hard link carries no metadata of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cri.images.errors import Oversized, Unpackable
from cri.images.layer import tarstream
from cri.images.layer.inode import Content, Inode
from cri.images.layer.tarstream import PATH_MAX, TarEntry
from cri.images.rootfs.baseline import Baseline

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
NAME_MAX = 255
MAX_SYMLINKS = 255
# Directory lookups for all entries of an image; an ordinary image needs about ten for each entry. Without a
# limit, a few entries deep behind symlinks would take hours.
MAX_STEPS = 20_000_000
# tar2sqfs accepts no longer PAX header, and names need a part of it.
MAX_XATTRS = 48 << 10
_XATTRS_KEPT = (b"user.", b"trusted.", b"security.")
# The kernel's own marks for overlays; in a lower layer they would hide files.
_XATTR_OVERLAY = b"trusted.overlay."


class _Trail(NamedTuple):
    """Directories from the root down, and the names that lead from each to the next."""

    nodes: tuple[Inode, ...]
    names: tuple[bytes, ...]


class MergedTree:
    """Layers are applied lowest first; difference() lists the result, or what is new since rebase()."""

    def __init__(self, subject: str, max_bytes: int, before: tuple[Inode, int] | None = None) -> None:
        """before: the root and last serial of a tree to continue from, as after rebase()."""
        self._subject = subject
        self._max_bytes = max_bytes
        self._serial = 0 if before is None else before[1]
        self._steps = 0
        self._layer = -1
        # (directory's serial, name) of all that the current layer brought, ancestors included.
        self._touched: set[tuple[int, bytes]] = set()
        self._last: tuple[bytes, _Trail] | None = None
        self._base = Baseline(-1 if before is None else self._serial)
        self.root = self._node(tarstream.DIR) if before is None else before[0]

    @property
    def serial(self) -> int:
        """The serial of the newest inode."""
        return self._serial

    def rebase(self) -> None:
        """Make the present state the one that difference() compares with."""
        self._base = Baseline(self._serial)

    def difference(self) -> Iterator[tuple[bytes, Inode]]:
        """What differs from rebase(), or without one all that is there: see Baseline.difference."""
        return self._base.difference(self.root)

    def main_name(self, node: Inode) -> bytes | None:
        """See Baseline.main_name()."""
        return self._base.main_name(node, self.root)

    def apply(self, layer: int, entries: list[TarEntry]) -> None:
        """Apply the entries of one layer; raises Unpackable."""
        self._layer = layer
        self._touched.clear()
        for entry in entries:
            parts = _clean(entry.name)
            if not parts:
                self._set_root(entry)
                continue
            if parts[-1].startswith(WHITEOUT):
                self._hide(entry, parts)
            else:
                self._place(entry, parts)

    def described(self, entry: TarEntry) -> tuple[bytes, Inode]:
        """A file's path and inode, as they are unless other entries have to do with it."""
        node = Inode(tarstream.FILE, 0)
        self._describe(node, entry)
        return b"/".join(_clean(entry.name)), node

    def find(self, path: bytes) -> Inode | None:
        """The inode a process in the image would reach by this path, symlinks followed; None: nothing."""
        try:
            return self._follow(_clean(path))
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
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise Oversized("merge", self._subject, f"its paths take more than {MAX_STEPS} steps to follow")

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
        """Remove what lower layers brought under this name; what this layer brought stays."""
        stack = [(parent, name)]
        while stack:
            parent, name = stack.pop()
            if (parent.serial, name) not in self._touched:
                del self._base.editing(parent)[name]
                self._last = None
            elif parent.names[name].is_directory:
                child = parent.names[name]
                self._spend(len(child.names))
                stack += [(child, below) for below in child.names]

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
        for above, name in zip(trail.nodes, (*trail.names, base), strict=True):
            self._touched.add((above.serial, name))

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
        parts = _clean(entry.link)
        trail = self._resolve(parts[:-1], create=False)
        node = trail.nodes[-1].names.get(parts[-1]) if trail is not None and parts else None
        if node is None:
            raise self._bad(entry, f"is a hard link to {tarstream.shown(entry.link)}, which is not there")
        if node.kind == tarstream.DIR:
            raise self._bad(entry, f"is a hard link to the directory {tarstream.shown(entry.link)}")
        self._base.link(node, b"/".join((*trail.names, parts[-1])) if trail is not None else b"")
        return node

    def _resolve(self, parts: list[bytes], create: bool) -> _Trail | None:
        """The directory a path leads to; None: it is not there, or something on the way is no directory.

        Missing directories are made (root's, 0755) when create is set, as every unpacker does. Raises
        Unpackable for a loop of symlinks.
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
                    where = tarstream.shown(b"/".join(parts))
                    raise Unpackable("merge", self._subject, f"too many symlinks on the way to {where}")
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
                node = self._node(tarstream.DIR)
                self._base.editing(above)[name] = node
            yield node
            above = node

    def _describe(self, node: Inode, entry: TarEntry) -> None:
        node.mode, node.uid, node.gid, node.mtime = entry.mode, entry.uid, entry.gid, entry.mtime
        node.device = entry.device
        node.xattrs = self._kept_xattrs(entry)
        if entry.kind == tarstream.SYMLINK:
            if not entry.link or len(entry.link) >= PATH_MAX:
                raise self._bad(entry, "is a symlink with an empty or overlong target")
            node.target = entry.link
        elif entry.kind == tarstream.FILE:
            if entry.size > self._max_bytes:
                cause = f"a file of {entry.size} bytes, more than {self._max_bytes}"
                raise Oversized("merge", self._subject, cause)
            node.size = entry.size
            data = Content(self._layer, entry.offset, entry.stored, entry.extents)
            node.content = data if entry.size else None

    def _kept_xattrs(self, entry: TarEntry) -> tuple[tuple[bytes, bytes], ...]:
        """The attributes that squashfs can store; POSIX ACLs (system.*) are not among them."""
        if not entry.xattrs:
            return ()
        kept = tuple(
            (key, value)
            for key, value in entry.xattrs
            if key.startswith(_XATTRS_KEPT)
            and not key.startswith(_XATTR_OVERLAY)
            # The kernel allows user attributes on files and directories alone.
            and (not key.startswith(b"user.") or entry.kind in (tarstream.FILE, tarstream.DIR))
        )
        if any(len(key) > NAME_MAX for key, _ in kept) or sum(len(k) + len(v) for k, v in kept) > MAX_XATTRS:
            raise self._bad(entry, f"has extended attributes of more than {MAX_XATTRS} bytes")
        return kept

    def _bad(self, entry: TarEntry, cause: str) -> Unpackable:
        return Unpackable("merge", self._subject, f"{tarstream.shown(entry.name)} {cause}")


def _clean(name: bytes) -> list[bytes]:
    """The parts of a name; ``.`` and ``..`` are resolved as text and stay inside the root."""
    parts: list[bytes] = []
    for part in name.split(b"/"):
        if part == b"..":
            if parts:
                parts.pop()
        elif part not in (b"", b"."):
            parts.append(part)
    return parts
