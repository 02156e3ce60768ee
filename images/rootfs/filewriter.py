"""Files of the topmost layer, written into a filesystem while the layer arrives."""

from __future__ import annotations

from functools import partial
from typing import BinaryIO, NamedTuple

from images.bounds.limits import ImageLimits
from images.errors import Oversized, Unpackable
from images.layer import tarstream
from images.layer.inode import Content, Inode, recorded
from images.layer.stream import PlainStream
from images.layer.tarstream import TarEntry
from images.rootfs import tarwrite
from images.rootfs.stream import ACCOUNT_FILES, FilesDigest, StreamPipe
from images.rootfs.tree import MergedTree

_ACCOUNTS = {path.encode().lstrip(b"/") for path in ACCOUNT_FILES}


class Written(NamedTuple):
    """What was written of a layer's files.

    useful: whether all of it was; digest: see FilesDigest; accounts: data of account files by their offsets
    in the layer; bytes: of all files.
    """

    useful: bool
    digest: bytes
    accounts: dict[int, bytes]
    bytes: int


class FileWriter:
    """Takes it that every file of the layer belongs into the filesystem, under its own name.

    Mostly that is so. A layer may also have a file twice, or a name that leads through a lower layer's
    symbolic link: then what was begun does not fit the plan, and is of no use.
    """

    def __init__(self, diff_id: str, limits: ImageLimits, sink: StreamPipe) -> None:
        """diff_id: of the layer."""
        self._limits = limits
        self._sink = sink
        self._tree = MergedTree(diff_id, limits)
        self._digest = FilesDigest(diff_id)
        self._useful = True
        # By path: a layer that has one twice is not useful, and must not cost memory for each.
        self._accounts: dict[bytes, tuple[int, bytes]] = {}
        self._bytes = 0

    def take(self, entry: TarEntry, stream: PlainStream) -> None:
        """Write the layer's next entry, if it is a file with data; see StreamPipe.put."""
        if not self._useful or entry.kind != tarstream.FILE or not entry.size:
            return
        try:
            path, node = self._tree.described(entry)
        except (Unpackable, Oversized):
            # Whoever applies the entry to the tree will say so.
            self._useful = False
            return
        if node.content is not None:
            write = partial(self._write, path, node, node.content, stream)
            self._useful = self._sink.put(write)

    def written(self) -> Written:
        """What was written so far."""
        useful = self._sink.flush() and self._useful
        return Written(useful, self._digest.value(), dict(self._accounts.values()), self._bytes)

    def _write(self, path: bytes, node: Inode, content: Content, stream: PlainStream, sink: BinaryIO) -> None:
        self._bytes += content.stored
        header, padding = tarwrite.member(path, node)
        self._digest.add(path, recorded(node))
        sink.write(header)
        if path in _ACCOUNTS and content.stored <= self._limits.account_file_bytes:
            data = stream.exactly(content.stored)
            self._accounts[path] = (content.offset, data)
            sink.write(data)
        else:
            for view in stream.views(content.stored):
                sink.write(view)
        sink.write(bytes(padding))
