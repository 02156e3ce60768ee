"""Files of the topmost layer, written into a filesystem while the layer arrives."""

from __future__ import annotations

from functools import partial
from typing import BinaryIO, NamedTuple

from images.bounds.limits import ImageLimits
from images.image_errors import Oversized, Unpackable
from images.layer import tarstream
from images.layer.inode import Content, Inode, recorded
from images.layer.stream import PlainStream
from images.layer.tarstream import TarEntry
from images.rootfs import tarwrite
from images.rootfs.stream import ACCOUNT_FILES, FilesDigest, StreamPipe
from images.rootfs.tree import MergedTree

_ACCOUNTS = {path.encode().lstrip(b"/") for path in ACCOUNT_FILES}


class Written(NamedTuple):
    """Result of writing a layer's files.

    useful: whether all files were written; digest: see FilesDigest; accounts: data of account files by their
    offsets in the layer; bytes: of all files.
    """

    useful: bool
    digest: bytes
    accounts: dict[int, bytes]
    bytes: int


class FileWriter:
    """Writes every file of a layer into the filesystem under its own name, before the plan exists.

    The guess is mostly right. But a layer may have a file twice, or a name that passes through a lower
    layer's symbolic link: then the result does not fit the plan, and is useless.
    """

    def __init__(self, diff_id: str, limits: ImageLimits, sink: StreamPipe) -> None:
        """diff_id: of the layer."""
        self._limits = limits
        self._sink = sink
        self._tree = MergedTree(diff_id, limits)
        self._digest = FilesDigest(diff_id)
        self._useful = True
        # By path: a repeated file makes the layer useless, but must not cost memory for each repetition.
        self._accounts: dict[bytes, tuple[int, bytes]] = {}
        self._bytes = 0

    def take(self, entry: TarEntry, stream: PlainStream) -> None:
        """Write the layer's next entry, if a file with data; see StreamPipe.put."""
        if not self._useful or entry.kind != tarstream.FILE or not entry.size:
            return
        try:
            path, node = self._tree.described(entry)
        except (Unpackable, Oversized):
            # MergedTree.apply() raises the same error later.
            self._useful = False
            return
        if node.content is not None:
            write = partial(self._write, path, node, node.content, stream)
            self._useful = self._sink.put(write)

    def written(self) -> Written:
        """The result of all files written until now."""
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
