"""Finds the files of a kernel image in its layers.

The image is not mounted, and nothing of it unpacked: its kept layers are read as streams, verified against
the digests in its configuration, and merged as they are when a filesystem is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cri.images.concurrency import CancelToken
from cri.images.errors import Oversized
from cri.images.kernels import kconfig, metadata
from cri.images.layer import tarstream
from cri.images.layer.inode import Content, Inode
from cri.images.layer.layers import LayerBudget, file_chunks, read_layer
from cri.images.registry import manifests
from cri.images.rootfs.tree import MergedTree
from cri.images.settings import ImageLimits, KernelSettings
from cri.images.store.catalogue import StoredImage
from cri.images.store.store import ImageStore
from daemonkit.faults import Broken, Refused

FOLDER = b"kernel"
KERNEL, ADDONS, INITRAMFS = "image", "addons.squashfs", "initramfs"
METADATA, CONFIG = "metadata", "config.gz"
_READ = "read kernel image"
_ENTRIES = 50_000
"""Limit on an image's entries: few are needed, and a pod waits while they are read."""
_SIZES = {KERNEL: "image_bytes", ADDONS: "addons_bytes", INITRAMFS: "initramfs_bytes"}
_KINDS = {
    tarstream.SYMLINK: "a symbolic link",
    tarstream.DIR: "a directory",
    tarstream.CHAR: "a device",
    tarstream.BLOCKDEV: "a device",
    tarstream.FIFO: "a pipe",
}


class LayerFile(NamedTuple):
    """A kept layer: its compressed bytes, how many, and the digest of the plain ones."""

    path: Path
    size: int
    diff_id: str


class KernelPlan(NamedTuple):
    """files: where the data of each wanted file of /kernel is, by its name there."""

    subject: str
    layers: tuple[LayerFile, ...]
    files: Mapping[str, Content]


def find(
    store: ImageStore, image: StoredImage, settings: KernelSettings, limits: ImageLimits, token: CancelToken
) -> KernelPlan:
    """Read all layers.  Refused, Oversized: it is no kernel image; Corrupt, Broken: the store is damaged."""
    subject = name_of(image)
    layers = _layers(store, image, subject)
    whole = 2 * (settings.image_bytes + settings.addons_bytes + settings.initramfs_bytes)
    bounds = replace(
        limits,
        unpacked_bytes=min(limits.unpacked_bytes, whole),
        entries=min(limits.entries or _ENTRIES, _ENTRIES),
    )
    tree = MergedTree(subject, bounds)
    try:
        _read(layers, tree, LayerBudget(subject, bounds), bounds, token)
    except Oversized as fault:
        hint = f"a kernel image has at most {_ENTRIES} entries, and twice the bytes of all sizes in [kernels]"
        raise Oversized(_READ, subject, fault.cause, f"{hint} in cri.toml") from fault
    most = {
        KERNEL: settings.image_bytes,
        ADDONS: settings.addons_bytes,
        INITRAMFS: settings.initramfs_bytes,
        METADATA: metadata.LIMIT,
        CONFIG: kconfig.LIMIT,
    }
    return KernelPlan(subject, layers, _files(tree, subject, most))


def _read(
    layers: Sequence[LayerFile],
    tree: MergedTree,
    budget: LayerBudget,
    limits: ImageLimits,
    token: CancelToken,
) -> None:
    for number, layer in enumerate(layers):
        packed = chunks(layer.path, tree.subject, token)
        index = read_layer(packed, layer.size, layer.diff_id, limits, token=token)
        budget.spend(index.cost)
        tree.apply(number, token.passing(index.entries))


def name_of(image: StoredImage) -> str:
    """The name of an image for messages."""
    return next(iter((*image.repo_tags, *image.repo_digests)), image.id)


def chunks(path: Path, subject: str, token: CancelToken) -> Iterator[bytes]:
    """A kept layer's bytes; Broken when they are gone."""
    try:
        yield from file_chunks(path, token)
    except FileNotFoundError:
        hint = "remove it, and pull it again"
        raise Broken(_READ, subject, f"its layer {path.name} is gone", hint) from None


def _layers(store: ImageStore, image: StoredImage, subject: str) -> tuple[LayerFile, ...]:
    row = store.stored(image)[0]
    said = manifests.parse_json(row.config, image.id).get("rootfs")
    diff_ids = said.get("diff_ids") if isinstance(said, dict) else None
    if not isinstance(diff_ids, list) or len(diff_ids) != len(row.layers) or not diff_ids:
        cause = "not all of its layers are kept"
        raise Refused(_READ, subject, cause, "remove it, and pull it again")
    found = zip(row.layers, diff_ids, strict=True)
    return tuple(LayerFile(store.files.blob_path(digest), size, diff_id) for (digest, size), diff_id in found)


def _files(tree: MergedTree, subject: str, most: Mapping[str, int]) -> dict[str, Content]:
    folder = tree.root.names.get(FOLDER)
    if folder is None or not folder.is_directory:
        raise Refused(_READ, subject, "it has no directory /kernel", "it is no kernel image")
    files: dict[str, Content] = {}
    for name, limit in most.items():
        node = folder.names.get(name.encode())
        if node is None and name in (KERNEL, METADATA):
            raise Refused(_READ, subject, f"it has no /kernel/{name}", "it is no kernel image")
        if node is not None:
            files[name] = _content(node, name, limit, subject)
    places = {(content.layer, content.offset) for content in files.values()}
    if len(places) < len(files):
        raise Refused(_READ, subject, "two names in /kernel are one file")
    return files


def _content(node: Inode, name: str, limit: int, subject: str) -> Content:
    """Where a regular file's data is; links are not followed."""
    if node.kind != tarstream.FILE:
        raise Refused(_READ, subject, f"/kernel/{name} is {_KINDS[node.kind]}, not a regular file")
    if node.size > limit:
        cause = f"/kernel/{name} has {node.size} bytes, more than {limit}"
        key = _SIZES.get(name)
        hint = f"kernels.{key} in cri.toml is the limit" if key else ""
        raise Oversized(_READ, subject, cause, hint)
    if node.content is None:
        raise Refused(_READ, subject, f"/kernel/{name} is empty")
    if node.content.extents is not None:
        raise Refused(_READ, subject, f"/kernel/{name} is stored as a sparse file")
    return node.content
