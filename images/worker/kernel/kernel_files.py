"""Finds the files of a kernel image in its layers, and copies them out: the worker's side.

No layer is unpacked: layers are read as streams, verified against the digests in the configuration, and
merged as for a filesystem.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from daemonkit.faults import Refused
from images.bounds.fields import FieldWriter
from images.bounds.limits import ImageLimits
from images.image_errors import Corrupt, Oversized
from images.layer import compression, tarstream
from images.layer.inode import Inode
from images.layer.layers import LayerBudget, read_chunks, read_layer
from images.layer.stream import PlainStream
from images.rootfs.tree import MergedTree
from images.worker import wire
from images.worker.kernel import kconfig

FOLDER = b"kernel"
READ = "read kernel image"
_KINDS = {
    tarstream.SYMLINK: "a symbolic link",
    tarstream.DIR: "a directory",
    tarstream.CHAR: "a device",
    tarstream.BLOCKDEV: "a device",
    tarstream.FIFO: "a pipe",
}


class WantedFile(NamedTuple):
    """A file of /kernel. most: size limit in bytes; key: name of the setting for the limit, "": fixed."""

    name: str
    most: int
    key: str
    needed: bool


class KernelPlace(NamedTuple):
    """The place of a file's data. number: index among the answer's files; config: the file is config.gz."""

    number: int
    offset: int
    stored: int
    config: bool


def find_kernel_files(
    files: Sequence[BinaryIO],
    limits: ImageLimits,
    subject: str,
    layers: Sequence[tuple[int, str]],
    wanted: Sequence[tuple[str, int, str, bool]],
) -> FieldWriter:
    """For each wanted file: presence, layer, offset, and size.

    layers: compressed size and plain digest of each; wanted: see WantedFile. Raises Refused or Oversized if
    the image is no kernel image; Corrupt: a layer is damaged.
    """
    tree, budget = MergedTree(subject, limits), LayerBudget(subject, limits)
    for number, (file, (size, diff_id)) in enumerate(zip(files, layers, strict=True)):
        index = read_layer(read_chunks(file.fileno()), size, diff_id, limits)
        budget.spend(index.cost)
        tree.apply(number, index.entries)
    folder = tree.root.names.get(FOLDER)
    if folder is None or not folder.is_directory:
        raise Refused(READ, subject, "it has no directory /kernel", "it is no kernel image")
    return _places(folder.names, list(map(WantedFile._make, wanted)), subject)


def _places(names: Mapping[bytes, Inode], wanted: Sequence[WantedFile], subject: str) -> FieldWriter:
    fields, places, count = FieldWriter(), set[tuple[int, int]](), 0
    for one in wanted:
        node = names.get(one.name.encode())
        if node is None and one.needed:
            raise Refused(READ, subject, f"it has no /kernel/{one.name}", "it is no kernel image")
        place = (0, 0, 0)
        if node is not None:
            place = _place(node, one, subject)
            places.add(place[:2])
            count += 1
        fields.number(node is not None)
        for number in place:
            fields.number(number)
    if len(places) < count:
        raise Refused(READ, subject, "two names in /kernel are one file")
    return fields


def _place(node: Inode, wanted: WantedFile, subject: str) -> tuple[int, int, int]:
    """Where a regular file's data is; links are not followed."""
    name = f"/kernel/{wanted.name}"
    if node.kind != tarstream.FILE:
        raise Refused(READ, subject, f"{name} is {_KINDS[node.kind]}, not a regular file")
    if node.size > wanted.most:
        cause = f"{name} has {node.size} bytes, more than {wanted.most}"
        hint = f"kernels.{wanted.key} in cri.toml is the limit" if wanted.key else ""
        raise Oversized(READ, subject, cause, hint)
    if node.content is None:
        raise Refused(READ, subject, f"{name} is empty")
    if node.content.extents is not None:
        raise Refused(READ, subject, f"{name} is stored as a sparse file")
    return node.content[:3]


def copy(
    target: int,
    blob: BinaryIO,
    subject: str,
    diff_id: str,
    places: Sequence[tuple[int, int, int, bool]],
    extras: Sequence[str],
) -> FieldWriter:
    """Copy files out of one layer. Verifies the layer again: the layer may have changed since the search.

    places: see KernelPlace, by offset; extras: see kconfig.check_kconfig(). Corrupt: the layer is damaged;
    Refused: the kernel was not built for zones.
    """
    algorithm, _, digest = diff_id.partition(":")
    whole = hashlib.new(algorithm)
    plain = compression.plain(read_chunks(blob.fileno()), subject)
    stream = PlainStream(_hashed(plain, whole), subject)
    config = None
    for place in map(KernelPlace._make, places):
        stream.skip(place.offset - stream.offset)
        with wire.file(target, place.number) as out:
            if place.config:
                config = stream.exactly(place.stored)
                out.write(config)
            else:
                for view in stream.views(place.stored):
                    out.write(view)
    stream.drain()
    if whole.hexdigest() != digest:
        raise Corrupt(READ, subject, "a layer of it is damaged", "remove it, and pull it again")
    if config is not None:
        kconfig.check_kconfig(config, subject, set(extras))
    return FieldWriter()


def _hashed(chunks: Iterable[bytes], running: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        running.update(chunk)
        yield chunk
