"""Layers to one filesystem image: their entries merged first, then their data streamed once into tar2sqfs.

No layer is unpacked: an index of names is held in memory, and each layer's plain stream is passed through,
from which the bytes of those files that are there in the end are copied out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cri.images import tarstream, tarwrite
from cri.images.cancel import Cancel
from cri.images.errors import Oversized, Unpackable
from cri.images.inode import Content, Node
from cri.images.layers import LayerIndex, file_chunks, plain_stream
from cri.images.progress import Meter
from cri.images.settings import ImageSettings
from cri.images.squash import squashfs
from cri.images.stream import Stream
from cri.images.tree import Tree

# Kept beside the filesystem, so that users can be looked up by name without opening it, and kernels told.
ACCOUNT_FILES = ("/etc/passwd", "/etc/group", "/kernel/metadata")


# squashfs names owners by an index of 16 bits.
MAX_OWNERS = 0xFFFF


class Filesystem(NamedTuple):
    """A finished image. digest: of its file; accounts: path to contents of the account files it has."""

    digest: str
    accounts: Mapping[str, bytes]


class _Plan(NamedTuple):
    """What goes into the stream: bare inodes, then files by layer and offset, then further names."""

    bare: list[tuple[bytes, Node]]
    files: dict[int, list[tuple[bytes, Node, Content]]]
    links: list[tuple[bytes, bytes]]


def convert(
    blobs: Sequence[Path],
    indexes: Sequence[LayerIndex],
    out: Path,
    settings: ImageSettings,
    cancel: Cancel,
    meter: Meter,
) -> Filesystem:
    """Builds out from layers, lowest first; the same layers give the same bytes.

    Raises Unpackable, Oversized, Exhausted (disk), Cancelled; then nothing is left of out.
    """
    tree = merge(indexes, out.name, settings, cancel)
    plan = _plan(tree, out.name, settings)
    accounts = _Accounts(tree, settings.limits.account_file_bytes)

    def feed(sink: BinaryIO) -> None:
        for path, node in plan.bare:
            sink.write(tarwrite.member(path, node)[0])
        for layer in sorted(plan.files):
            cancel.check()
            stream = plain_stream(blobs[layer], out.name)
            _copy_files(plan.files[layer], stream, sink, accounts, cancel, meter)
        for path, target in plan.links:
            sink.write(tarwrite.hard_link(path, target))
        sink.write(tarwrite.END)

    jobs = max(1, len(os.sched_getaffinity(0)))
    total = sum(content.stored for files in plan.files.values() for _, _, content in files)
    with meter.running(total):
        squashfs(out, feed, settings.compression, settings.compression_level, jobs, cancel)
    return Filesystem(_digest(out, cancel), accounts.found)


def _digest(path: Path, cancel: Cancel) -> str:
    """Of the file, which is still in memory: it was written out of order."""
    running = hashlib.sha256()
    for piece in file_chunks(path):
        cancel.check()
        running.update(piece)
    return f"sha256:{running.hexdigest()}"


def merge(indexes: Sequence[LayerIndex], subject: str, settings: ImageSettings, cancel: Cancel) -> Tree:
    """The merged tree of all layers, lowest first."""
    tree = Tree(subject, settings.limits.unpacked_bytes)
    for layer, index in enumerate(indexes):
        cancel.check()
        tree.apply(layer, index.entries)
    return tree


def _plan(tree: Tree, subject: str, settings: ImageSettings) -> _Plan:
    plan = _Plan([], {}, [])
    first: dict[int, bytes] = {}
    owners: set[int] = set()
    size = names = 0
    for path, node in tree.walk():
        names += len(path)
        if names > settings.limits.index_bytes:
            raise Oversized("merge", subject, f"paths of more than {settings.limits.index_bytes} bytes")
        if node.serial in first:
            plan.links.append((path, first[node.serial]))
            continue
        first[node.serial] = path
        owners |= {node.uid, node.gid}
        size += node.size
        if node.content is None:
            plan.bare.append((path, node))
        else:
            plan.files.setdefault(node.content.layer, []).append((path, node, node.content))
    if len(owners) > MAX_OWNERS:
        raise Unpackable(
            "merge", subject, f"{len(owners)} owners, more than the {MAX_OWNERS} squashfs can hold"
        )
    if size > settings.limits.unpacked_bytes:
        raise Oversized(
            "merge", subject, f"{size} bytes of files, more than {settings.limits.unpacked_bytes}"
        )
    for files in plan.files.values():
        files.sort(key=lambda file: file[2].offset)
    return plan


def _copy_files(
    files: list[tuple[bytes, Node, Content]],
    stream: Stream,
    sink: BinaryIO,
    accounts: _Accounts,
    cancel: Cancel,
    meter: Meter,
) -> None:
    for path, node, content in files:
        cancel.check()
        header, padding = tarwrite.member(path, node)
        sink.write(header)
        stream.skip(content.offset - stream.offset)
        if accounts.wants(node):
            data = stream.exactly(content.stored)
            accounts.keep(node, data)
            sink.write(data)
        else:
            for view in stream.views(content.stored):
                sink.write(view)
                meter.add(len(view))
        if padding:
            sink.write(bytes(padding))


class _Accounts:
    """The account files of the image, caught while their data passes by."""

    def __init__(self, tree: Tree, limit: int) -> None:
        self.found: dict[str, bytes] = {}
        self._paths: dict[int, list[str]] = {}
        for path in ACCOUNT_FILES:
            node = tree.find(path.encode())
            if node is None or node.kind != tarstream.FILE or node.size > limit:
                continue
            if node.content is None:
                self.found[path] = b""
            elif node.content.extents is None:
                self._paths.setdefault(node.serial, []).append(path)

    def wants(self, node: Node) -> bool:
        """Whether the inode is an account file."""
        return node.serial in self._paths

    def keep(self, node: Node, data: bytes) -> None:
        """Takes the file's data."""
        for path in self._paths[node.serial]:
            self.found[path] = data
