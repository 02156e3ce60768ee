"""Records the state of a tree before layers are applied, to list the changes afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from images.layer import tarstream
from images.layer.inode import Attributes, Inode

# The overlayfs whiteout (Linux, Documentation/filesystems/overlayfs.rst, "whiteouts").
NOTHING = Inode(tarstream.CHAR, 0xFFFFFFFF)
NOTHING.describe(Attributes(tarstream.CHAR, 0, 0, 0, ()), 0, 0)


class Baseline:
    """Inodes up to a serial, and the earlier names in directories that changed later.

    Only directories change in place: any other change is a new inode, or an old inode under a new name.
    """

    def __init__(self, serial: int) -> None:
        """serial: of the last earlier inode; below 0: the earlier tree was empty, without a root."""
        self._serial = serial
        self._names: dict[int, dict[bytes, Inode]] = {}
        # Directories with a change, in the directory itself or anywhere below.
        self._changed: set[int] = set()
        # Earlier files that got another name: all names of a file must be in one filesystem.
        self._linked: set[int] = set()
        # Inodes that gained a hard link, old or new, with their name before that.
        self._several: dict[int, bytes] = {}

    def editing(self, directory: Inode) -> dict[bytes, Inode]:
        """A directory's names, for changing; their earlier state is kept."""
        serial = directory.serial
        if serial <= self._serial and serial not in self._names:
            self._names[serial] = dict(directory.names)
        return directory.names

    def change(self, *directories: Inode) -> None:
        """Record changed directories: pass the whole path from the root."""
        self._changed.update(node.serial for node in directories if node.serial <= self._serial)

    def link(self, node: Inode, path: bytes) -> None:
        """Record one more name of an inode; path: the target name of the hard link."""
        self._several.setdefault(node.serial, path)
        if node.serial <= self._serial:
            self._linked.add(node.serial)

    def has_several_names(self, node: Inode) -> bool:
        """Whether an inode gained a hard link after the baseline."""
        return bool(self._several) and node.serial in self._several

    def main_name(self, node: Inode, root: Inode) -> bytes | None:
        """The name of a hard-linked file in its layer; None: the name no longer exists."""
        path = self._several[node.serial]
        found: Inode | None = root
        for part in path.split(b"/"):
            found = found.names.get(part) if found is not None and found.is_directory else None
        return path if found is node else None

    def difference(self, root: Inode) -> Iterator[tuple[bytes, Inode]]:
        """The changes between the earlier tree and root: parents first, names in byte order.

        The root's path is b"". A removed name has the inode NOTHING; a directory with changes anywhere below
        appears with its present attributes. overlayfs merges names, hence opaque directories are not needed.
        """
        self._mark_links(root)
        before = root if self._serial >= root.serial else None
        stack: list[tuple[bytes, Inode | None, Inode]] = [(b"", before, root)]
        while stack:
            path, before, node = stack.pop()
            yield path, node
            if not node.is_directory:
                continue
            was, prefix = self._before(before), path + b"/" if path else b""
            for name in sorted(node.names.keys() | was.keys(), reverse=True):
                old, new = _there(was.get(name)), _there(node.names.get(name))
                if new is None and old is not None:
                    stack.append((prefix + name, None, NOTHING))
                elif new is not None and (new is not old or self._differs(new)):
                    stack.append((prefix + name, old, new))

    def _before(self, node: Inode | None) -> Mapping[bytes, Inode]:
        if node is None or not node.is_directory:
            return {}
        return self._names.get(node.serial, node.names)

    def _differs(self, node: Inode) -> bool:
        return node.serial in (self._changed if node.is_directory else self._linked)

    def _mark_links(self, root: Inode) -> None:
        """Mark every directory with a name of a linked inode as changed."""
        if not self._linked:
            return
        above: dict[int, Inode] = {}
        stack = [root]
        while stack:
            directory = stack.pop()
            for node in directory.names.values():
                if node.is_directory:
                    above[node.serial] = directory
                    stack.append(node)
                elif node.serial in self._linked:
                    here: Inode | None = directory
                    while here is not None and here.serial not in self._changed:
                        self._changed.add(here.serial)
                        here = above.get(here.serial)


def _there(node: Inode | None) -> Inode | None:
    """The inode, or None for a device 0:0: overlayfs reads the device as a whiteout (as with containerd)."""
    return None if node is not None and node.kind == tarstream.CHAR and node.device == (0, 0) else node
