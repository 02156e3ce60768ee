"""Inodes of a merged tree, their data left in the layers."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from images.layer import tarstream
from images.layer.tarsparse import Extents

# serial, time, losses; for a file with data also layer, offset, stored bytes, size.
_PLAIN = Struct("<IIB")
_WITH_DATA = Struct("<IIBIQQQ")
# serial, kind, mode, uid, gid, mtime, size, target, device, xattrs, content, lost: see Inode.
InodeRecord = tuple[Any, ...]


class Content(NamedTuple):
    """The place of a file's bytes: layer, offset in the layer's plain stream, and length."""

    layer: int
    offset: int
    stored: int
    extents: Extents | None


class Attributes(NamedTuple):
    """Attributes shared by many inodes of an image."""

    kind: bytes
    mode: int
    uid: int
    gid: int
    xattrs: tuple[tuple[bytes, bytes], ...]


class Inode:
    """One inode of a merged tree, in little memory: images have hundreds of thousands of inodes.

    content: the place of the data, for a file that is not empty; size: the file's length; lost: see
    losses.py.
    """

    # _rest, by kind: a directory's names or their loader; a target; a device; a sparse file's extents.
    __slots__ = ("_attributes", "_numbers", "_rest")

    def __init__(self, kind: bytes, serial: int) -> None:
        self._attributes = Attributes(kind, 0o755, 0, 0, ())
        self._numbers = _PLAIN.pack(serial, 0, 0)
        self._rest: Any = {} if kind == tarstream.DIR else None

    def describe(self, attributes: Attributes, mtime: int, lost: int) -> None:
        """Set the attributes; the kind must not change."""
        self._attributes = attributes
        self._numbers = _PLAIN.pack(self.serial, mtime, lost)

    def fill(self, content: Content, size: int) -> None:
        """Give a file its data; after describe()."""
        serial, mtime, lost = _PLAIN.unpack_from(self._numbers)
        layer, offset, stored, self._rest = content
        self._numbers = _WITH_DATA.pack(serial, mtime, lost, layer, offset, stored, size)

    def point(self, target: bytes) -> None:
        """Give a symlink its target."""
        self._rest = target

    def stand_for(self, device: tuple[int, int]) -> None:
        """Give a device its number."""
        self._rest = device

    def load_later(self, load: Callable[[], dict[bytes, Inode]]) -> None:
        """Load a directory's children on first use."""
        self._rest = load

    @property
    def kind(self) -> bytes:
        """A type of tarstream."""
        return self._attributes.kind

    @property
    def is_directory(self) -> bool:
        """Whether the inode is a directory, with names."""
        return self._attributes.kind == tarstream.DIR

    @property
    def serial(self) -> int:
        """The inode's number in the tree; grows with each new inode."""
        return int.from_bytes(self._numbers[:4], "little")

    @property
    def mode(self) -> int:
        """Permissions, without the type."""
        return self._attributes.mode

    @property
    def uid(self) -> int:
        """The owner."""
        return self._attributes.uid

    @property
    def gid(self) -> int:
        """The owning group."""
        return self._attributes.gid

    @property
    def xattrs(self) -> tuple[tuple[bytes, bytes], ...]:
        """Extended attributes, by name."""
        return self._attributes.xattrs

    @property
    def mtime(self) -> int:
        """Seconds since the epoch, 32 bits."""
        return int.from_bytes(self._numbers[4:8], "little")

    @property
    def lost(self) -> int:
        """See losses.py."""
        return self._numbers[8]

    @property
    def size(self) -> int:
        """A file's length."""
        return int(_WITH_DATA.unpack(self._numbers)[6]) if len(self._numbers) > _PLAIN.size else 0

    @property
    def content(self) -> Content | None:
        """The place of the data; None: no data."""
        if len(self._numbers) == _PLAIN.size:
            return None
        layer, offset, stored, _ = _WITH_DATA.unpack(self._numbers)[3:]
        return Content(layer, offset, stored, self._rest)

    @property
    def target(self) -> bytes:
        """The target of a symlink."""
        return self._rest if isinstance(self._rest, bytes) else b""

    @property
    def device(self) -> tuple[int, int]:
        """Major and minor number."""
        return self._rest if self.kind in (tarstream.CHAR, tarstream.BLOCKDEV) and self._rest else (0, 0)

    @property
    def names(self) -> dict[bytes, Inode]:
        """A directory's children."""
        if not isinstance(self._rest, dict):
            self._rest = self._rest()
        names: dict[bytes, Inode] = self._rest
        return names


def recorded(node: Inode) -> InodeRecord:
    """The record of an inode, without a directory's names."""
    kind, mode, uid, gid, xattrs = node._attributes
    if len(node._numbers) == _PLAIN.size:
        serial, mtime, lost = _PLAIN.unpack(node._numbers)
        return serial, kind, mode, uid, gid, mtime, 0, node.target, node.device, xattrs, None, lost
    serial, mtime, lost, layer, offset, stored, size = _WITH_DATA.unpack(node._numbers)
    content = (layer, offset, stored, node._rest)
    return serial, kind, mode, uid, gid, mtime, size, b"", (0, 0), xattrs, content, lost


def identity(record: InodeRecord) -> tuple[Any, ...]:
    """The part of a record that identifies the inode: all but its number and the layer of its data."""
    content = record[10]
    return (*record[1:10], content and content[1:], *record[11:])


def restored(record: InodeRecord) -> Inode:
    """Restore the inode of a record; a directory comes without names."""
    serial, kind, mode, uid, gid, mtime, size, target, device, xattrs, content, lost = record
    node = Inode(kind, serial)
    node.describe(Attributes(kind, mode, uid, gid, xattrs), mtime, lost)
    if content is not None:
        node.fill(Content(*content), size)
    elif kind == tarstream.SYMLINK:
        node.point(target)
    elif kind in (tarstream.CHAR, tarstream.BLOCKDEV):
        node.stand_for(device)
    return node
