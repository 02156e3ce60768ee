"""Converts layers to a filesystem image: plans the final tree, then streams it once into tar2sqfs.

No layer is unpacked: an index of names is held in memory, and each layer's plain stream is passed through,
from which the bytes of those files that are there in the end are copied out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cri.images.concurrency import CancelToken
from cri.images.layer.inode import Content, Inode
from cri.images.layer.layers import file_chunks, plain_stream
from cri.images.layer.stream import PlainStream
from cri.images.rootfs import tarwrite
from cri.images.rootfs.begun import BegunFilesystem
from cri.images.rootfs.plan import FilesystemPlan
from cri.images.rootfs.squash import Squashfs
from cri.images.settings import ImageSettings


class BuiltFilesystem(NamedTuple):
    """A finished filesystem image. digest: of its file; accounts: contents of FilesystemPlan.accounts."""

    digest: str
    accounts: Mapping[str, bytes | None]


def convert(
    blobs: Sequence[Path],
    plan: FilesystemPlan,
    out: Path,
    settings: ImageSettings,
    token: CancelToken,
    moved: Callable[[int], None],
) -> BuiltFilesystem:
    """Build ``out`` from an image's layers, lowest first; the same plan gives the same bytes.

    moved: called with the number of bytes of files that were copied, plan.file_bytes in all.
    Raises Unpackable, Exhausted (disk), Cancelled; then nothing is left of out.
    """
    accounts = _Accounts(plan, {}, token)
    with closing(Squashfs(out, settings)) as squashfs:
        _write(squashfs, blobs, plan, plan.order, accounts, token, moved)
    return BuiltFilesystem(_digest(out, token), accounts.contents(blobs, out.name))


def convert_rest(
    begun: BegunFilesystem,
    blobs: Sequence[Path],
    plan: FilesystemPlan,
    token: CancelToken,
    moved: Callable[[int], None],
) -> BuiltFilesystem:
    """Like convert(), but continues a begun filesystem that fits the plan."""
    first, *rest = plan.order
    moved(begun.bytes)
    accounts = _Accounts(plan, {(first, at): data for at, data in begun.accounts.items()}, token)
    _write(begun.squashfs, blobs, plan, rest, accounts, token, moved)
    return BuiltFilesystem(_digest(begun.out, token), accounts.contents(blobs, begun.out.name))


def account_files(
    blobs: Sequence[Path], plan: FilesystemPlan, subject: str, token: CancelToken
) -> Mapping[str, bytes | None]:
    """The contents of FilesystemPlan.accounts, if no filesystem has to be built."""
    return _Accounts(plan, {}, token).contents(blobs, subject)


def _write(
    squashfs: Squashfs,
    blobs: Sequence[Path],
    plan: FilesystemPlan,
    layers: Sequence[int],
    accounts: _Accounts,
    token: CancelToken,
    moved: Callable[[int], None],
) -> None:
    def feed(sink: BinaryIO) -> None:
        for layer in layers:
            token.check()
            stream = plain_stream(blobs[layer], squashfs.out.name, token)
            _copy_files(plan.files[layer], stream, sink, accounts, token, moved)
        # Directories may come after what is in them: the tool makes them, and takes their attributes later.
        for path, node in plan.bare:
            sink.write(tarwrite.member(path, node)[0])
        for path, target in plan.links:
            sink.write(tarwrite.hard_link(path, target))
        sink.write(tarwrite.END)

    squashfs.write(feed, token)
    squashfs.finish(token)


def _digest(path: Path, token: CancelToken) -> str:
    """The file's digest, read again (from memory, mostly) because tar2sqfs writes out of order."""
    running = hashlib.sha256()
    for chunk in file_chunks(path, token):
        running.update(chunk)
    return f"sha256:{running.hexdigest()}"


def _copy_files(
    files: Iterable[tuple[bytes, Inode]],
    stream: PlainStream,
    sink: BinaryIO,
    accounts: _Accounts,
    token: CancelToken,
    moved: Callable[[int], None],
) -> None:
    for path, node in files:
        token.check()
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


class _Accounts:
    """Keeps the account files while their data passes."""

    def __init__(
        self, plan: FilesystemPlan, known: Mapping[tuple[int, int], bytes], token: CancelToken
    ) -> None:
        """known: data by the layer and the offset that it has there."""
        self._token = token
        self._nodes = plan.accounts
        contents = [node.content for node in plan.accounts.values() if node is not None]
        self._wanted = {content[:2] for content in contents if content is not None}
        self._found = dict(known)

    def wants(self, content: Content) -> bool:
        """Whether it is an account file's."""
        return content[:2] in self._wanted

    def keep(self, content: Content, data: bytes) -> None:
        """Keep the file's data."""
        self._found[content[:2]] = data

    def contents(self, blobs: Sequence[Path], subject: str) -> dict[str, bytes | None]:
        """All account files; what a new symlink leads to may be in a lower layer, and is read there."""
        contents: dict[str, bytes | None] = {}
        for path, node in self._nodes.items():
            if node is None or node.content is None:
                contents[path] = None if node is None else b""
                continue
            place = node.content[:2]
            if place not in self._found:
                stream = plain_stream(blobs[node.content.layer], subject, self._token)
                stream.skip(node.content.offset)
                self._found[place] = stream.exactly(node.content.stored)
            contents[path] = self._found[place]
        return contents
