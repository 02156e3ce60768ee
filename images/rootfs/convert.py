"""Writes the planned tree as a tar stream for tar2sqfs.

Layers are not unpacked: each layer's decompressed stream passes through, and the bytes of files in the final
tree are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO

from images.layer.inode import Content, Inode
from images.layer.layers import plain_stream
from images.layer.stream import PlainStream
from images.rootfs import tarwrite
from images.rootfs.stream import Contents


def write_stream(
    blobs: Mapping[int, BinaryIO],
    contents: Contents,
    accounts: Accounts,
    subject: str,
    moved: Callable[[int], None],
    sink: BinaryIO,
) -> None:
    """Write the rest of a filesystem's stream; blobs: layers by number.

    The same contents give the same bytes. moved: called with the number of bytes copied.
    """
    for layer, files in contents.files.items():
        stream = plain_stream(blobs[layer], subject)
        _copy_files(files, stream, sink, accounts, moved)
    # Directories may follow their contents: tar2sqfs creates a directory early, and sets attributes later.
    for path, node in contents.bare:
        sink.write(tarwrite.member(path, node)[0])
    for path, target in contents.links:
        sink.write(tarwrite.hard_link(path, target))
    sink.write(tarwrite.END)


def _copy_files(
    files: Iterable[tuple[bytes, Inode]],
    stream: PlainStream,
    sink: BinaryIO,
    accounts: Accounts,
    moved: Callable[[int], None],
) -> None:
    for path, node in files:
        content = node.content
        assert content is not None
        header, padding = tarwrite.member(path, node)
        sink.write(header)
        stream.skip(content.offset - stream.offset)
        if accounts.wants(content):
            data = stream.exactly(content.stored)
            accounts.keep(content, data)
            sink.write(data)
            moved(len(data))
        else:
            for view in stream.views(content.stored):
                sink.write(view)
                moved(len(view))
        if padding:
            sink.write(bytes(padding))


class Accounts:
    """The account files, caught while their data passes by."""

    def __init__(self, nodes: Mapping[str, Inode | None], known: Mapping[tuple[int, int], bytes]) -> None:
        """nodes: see FilesystemPlan.accounts; known: data by layer and offset in the layer."""
        self._nodes = nodes
        contents = [node.content for node in nodes.values() if node is not None]
        self._wanted = {content[:2] for content in contents if content is not None}
        self._found = dict(known)

    def wants(self, content: Content) -> bool:
        """Whether the content belongs to an account file."""
        return content[:2] in self._wanted

    def keep(self, content: Content, data: bytes) -> None:
        """Keep the file's data."""
        self._found[content[:2]] = data

    def contents(self, blobs: Mapping[int, BinaryIO], subject: str) -> dict[str, bytes | None]:
        """All account files; a new symlink's target may be in a lower layer, and is read from the layer."""
        contents: dict[str, bytes | None] = {}
        for path, node in self._nodes.items():
            if node is None or node.content is None:
                contents[path] = None if node is None else b""
                continue
            place = node.content[:2]
            if place not in self._found:
                stream = plain_stream(blobs[node.content.layer], subject)
                stream.skip(node.content.offset)
                self._found[place] = stream.exactly(node.content.stored)
            contents[path] = self._found[place]
        return contents
