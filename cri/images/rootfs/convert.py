"""Layers to a filesystem image: the final tree is planned, then streamed once into tar2sqfs.

No layer is unpacked: an index of names is held in memory, and each layer's plain stream is passed through,
from which the bytes of those files that are there in the end are copied out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cri.images.concurrency import CancelToken
from cri.images.layer.inode import Inode
from cri.images.layer.layers import file_chunks, plain_stream
from cri.images.layer.stream import PlainStream
from cri.images.rootfs import tarwrite
from cri.images.rootfs.plan import FilesystemPlan
from cri.images.rootfs.squash import squashfs
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

    moved: is told of the bytes of files that were copied, plan.file_bytes in all.
    Raises Unpackable, Exhausted (disk), Cancelled; then nothing is left of out.
    """
    accounts = _Accounts(plan, token)

    def feed(sink: BinaryIO) -> None:
        for path, node in plan.bare:
            sink.write(tarwrite.member(path, node)[0])
        for layer in sorted(plan.files):
            token.check()
            stream = plain_stream(blobs[layer], out.name, token)
            _copy_files(plan.files[layer], stream, sink, accounts, token, moved)
        for path, target in plan.links:
            sink.write(tarwrite.hard_link(path, target))
        sink.write(tarwrite.END)

    jobs = max(1, len(os.sched_getaffinity(0)))
    squashfs(out, feed, settings.compression, settings.compression_level, jobs, token)
    return BuiltFilesystem(_digest(out, token), accounts.contents(blobs, out.name))


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
        if accounts.wants(node):
            data = stream.exactly(content.stored)
            accounts.keep(node, data)
            sink.write(data)
            moved(len(data))
        else:
            for view in stream.views(content.stored):
                sink.write(view)
                moved(len(view))
        if padding:
            sink.write(bytes(padding))


class _Accounts:
    """The account files, caught while their data passes by."""

    def __init__(self, plan: FilesystemPlan, token: CancelToken) -> None:
        self._token = token
        self._nodes = plan.accounts
        self._wanted = {node.serial for node in plan.accounts.values() if node is not None}
        self._found: dict[int, bytes] = {}

    def wants(self, node: Inode) -> bool:
        """Whether the inode is an account file."""
        return node.serial in self._wanted

    def keep(self, node: Inode, data: bytes) -> None:
        """Keep the file's data."""
        self._found[node.serial] = data

    def contents(self, blobs: Sequence[Path], subject: str) -> dict[str, bytes | None]:
        """All account files; what a new symlink leads to may be in a lower layer, and is read there."""
        contents: dict[str, bytes | None] = {}
        for path, node in self._nodes.items():
            if node is None or node.content is None:
                contents[path] = None if node is None else b""
                continue
            if node.serial not in self._found:
                stream = plain_stream(blobs[node.content.layer], subject, self._token)
                stream.skip(node.content.offset)
                self._found[node.serial] = stream.exactly(node.content.stored)
            contents[path] = self._found[node.serial]
        return contents
