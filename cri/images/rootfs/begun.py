"""A filesystem that is begun while its topmost layer arrives, so that the layer is inflated only once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import BinaryIO

from cri.images.errors import Oversized, Unpackable
from cri.images.layer import tarstream
from cri.images.layer.inode import Content, Inode, recorded
from cri.images.layer.stream import PlainStream
from cri.images.layer.tarstream import TarEntry
from cri.images.rootfs import tarwrite
from cri.images.rootfs.content import ContentId, FilesDigest
from cri.images.rootfs.plan import ACCOUNT_FILES
from cri.images.rootfs.squash import Squashfs
from cri.images.rootfs.tree import MergedTree
from cri.images.settings import ImageSettings

_ACCOUNTS = {path.encode().lstrip(b"/") for path in ACCOUNT_FILES}


class BegunFilesystem:
    """Writes every file of the layer, assuming that each belongs into the filesystem under its own name.

    Mostly that is so. A layer may also have a file twice, or a name that leads through a lower layer's
    symbolic link: then what was begun does not fit the plan, and is of no use. accounts: data of account
    files by their offsets in the layer; bytes: of all files that were written.
    """

    def __init__(self, out: Path, diff_id: str, settings: ImageSettings) -> None:
        """diff_id: of the layer. Raises Refused; close() it in any case."""
        self.out = out
        self.accounts: dict[int, bytes] = {}
        self.bytes = 0
        self._limits = settings.limits
        self._tree = MergedTree(out.name, settings.limits)
        self._written = FilesDigest(diff_id)
        self._useful = True
        self.squashfs = Squashfs(out, settings)

    def take(self, entry: TarEntry, stream: PlainStream) -> None:
        """Write the layer's next entry, if it is a file with data; see Squashfs.put."""
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
            self._useful = self.squashfs.put(write)

    def fits(self, content: ContentId) -> bool:
        """Whether the files written so far are those that a plan begins with."""
        return self._useful and self._written.value() == content.first

    def close(self) -> None:
        """Remove the file, unless the filesystem is finished."""
        self.squashfs.close()

    def _write(self, path: bytes, node: Inode, content: Content, stream: PlainStream, sink: BinaryIO) -> None:
        self.bytes += content.stored
        header, padding = tarwrite.member(path, node)
        self._written.add(path, recorded(node))
        sink.write(header)
        if path in _ACCOUNTS and content.stored <= self._limits.account_file_bytes:
            self.accounts[content.offset] = stream.exactly(content.stored)
            sink.write(self.accounts[content.offset])
        else:
            for view in stream.views(content.stored):
                sink.write(view)
        sink.write(bytes(padding))
