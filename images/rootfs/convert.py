"""The stream that tar2sqfs makes a filesystem of: the final tree, planned, and written once.

No layer is unpacked: each layer's plain stream is passed through, from which the bytes of those files that
are there in the end are copied out.
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
    """Write what is left of a filesystem's stream, to its end; blobs: layers by their numbers.

    The same contents give the same bytes. moved: is told of the bytes of files that were copied.
    """
    for layer, files in contents.files.items():
        stream = plain_stream(blobs[layer], subject)
        _copy_files(files, stream, sink, accounts, moved)
    # Directories may come after what is in them: the tool makes them, and takes their attributes later.
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
        """nodes: see FilesystemPlan.accounts; known: data by the layer and the offset that it has there."""
        self._nodes = nodes
        contents = [node.content for node in nodes.values() if node is not None]
        self._wanted = {content[:2] for content in contents if content is not None}
        self._found = dict(known)

    def wants(self, content: Content) -> bool:
        """Whether it is an account file's."""
        return content[:2] in self._wanted

    def keep(self, content: Content, data: bytes) -> None:
        """Keep the file's data."""
        self._found[content[:2]] = data

    def contents(self, blobs: Mapping[int, BinaryIO], subject: str) -> dict[str, bytes | None]:
        """All account files; what a new symlink leads to may be in a lower layer, and is read there."""
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
