"""Finds the files of a kernel image in its layers; a worker reads the layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from daemonkit.faults import Broken, Refused
from images.bounds.cancel import CancelToken
from images.bounds.fields import FieldReader
from images.bounds.limits import ImageLimits
from images.image_errors import Oversized
from images.image_settings import KernelSettings
from images.kernels import metadata
from images.store.catalogue import StoredImage
from images.store.store import ImageStore
from images.worker import jobs
from images.worker.answer_frames import JobOutcome
from images.worker.kernel import kconfig
from images.worker.kernel.kernel_files import READ, WantedFile
from images.worker.planning import LARGEST_INT64
from images.worker.workers import LayerWorkers

KERNEL, ADDONS, INITRAMFS = "image", "addons.squashfs", "initramfs"
METADATA, CONFIG = "metadata", "config.gz"
_MOST_ENTRIES = 50_000
"""Limit on an image's entries: few are needed, and a pod waits while they are read."""


class FilePlace(NamedTuple):
    """The place of a file's data: layer, offset in the layer's plain stream, and length in bytes."""

    layer: int
    offset: int
    stored: int


class LayerFile(NamedTuple):
    """A kept layer: path and size of the compressed file, and the digest of the plain bytes."""

    path: Path
    size: int
    diff_id: str


class KernelPlan(NamedTuple):
    """files: the place of each wanted file of /kernel, by file name."""

    subject: str
    layers: tuple[LayerFile, ...]
    files: Mapping[str, FilePlace]


def find_kernel(
    store: ImageStore,
    image: StoredImage,
    settings: KernelSettings,
    limits: ImageLimits,
    workers: LayerWorkers,
    token: CancelToken,
) -> KernelPlan:
    """Read all layers.  Refused, Oversized: no kernel image; Corrupt, Broken: the store is damaged."""
    subject = name_of(image)
    layers = _layers(store, image, subject)
    whole = 2 * (settings.image_bytes + settings.addons_bytes + settings.initramfs_bytes)
    bounds = {
        "unpacked_bytes": min(limits.unpacked_bytes, whole),
        "entries": min(limits.entries or _MOST_ENTRIES, _MOST_ENTRIES),
    }
    wanted = (
        WantedFile(KERNEL, settings.image_bytes, "image_bytes", True),
        WantedFile(ADDONS, settings.addons_bytes, "addons_bytes", False),
        WantedFile(INITRAMFS, settings.initramfs_bytes, "initramfs_bytes", False),
        WantedFile(METADATA, metadata.LIMIT_BYTES, "", True),
        WantedFile(CONFIG, kconfig.LIMIT_BYTES, "", False),
    )

    def decode(answer: FieldReader) -> dict[str, FilePlace]:
        found: dict[str, FilePlace] = {}
        for one in wanted:
            there = answer.flag()
            place = FilePlace(
                answer.number(len(layers) - 1), answer.number(LARGEST_INT64), answer.number(one.most)
            )
            if there:
                found[one.name] = place
        return found

    stated = [(layer.size, layer.diff_id) for layer in layers], [tuple(one) for one in wanted]
    try:
        with opened(layers, subject) as files:
            handles = [file.fileno() for file in files]
            given = (subject, bounds, *stated)
            found = workers.run(jobs.FIND_KERNEL, given, token, JobOutcome(), decode, (), handles)
    except Oversized as fault:
        if fault.operation == READ:
            raise
        entries = f"a kernel image has at most {_MOST_ENTRIES} entries"
        hint = f"{entries}, and twice the bytes of all sizes in [kernels] in cri.toml"
        raise Oversized(READ, subject, fault.cause, hint) from fault
    return KernelPlan(subject, layers, found)


def name_of(image: StoredImage) -> str:
    """The name of an image for messages."""
    return next(iter((*image.repo_tags, *image.repo_digests)), image.id)


@contextmanager
def opened(layers: Sequence[LayerFile], subject: str) -> Iterator[list[BinaryIO]]:
    """Kept layers, open; Broken if a layer is gone."""
    with ExitStack() as stack:
        files: list[BinaryIO] = []
        for layer in layers:
            try:
                files.append(stack.enter_context(layer.path.open("rb")))
            except FileNotFoundError:
                hint = "remove it, and pull it again"
                raise Broken(READ, subject, f"its layer {layer.path.name} is gone", hint) from None
        yield files


def _layers(store: ImageStore, image: StoredImage, subject: str) -> tuple[LayerFile, ...]:
    row = store.stored(image)[0]
    diff_ids = store.facts(image).config.diff_ids
    if len(diff_ids) != len(row.layers) or not diff_ids:
        cause = "not all of its layers are kept"
        raise Refused(READ, subject, cause, "remove it, and pull it again")
    found = zip(row.layers, diff_ids, strict=True)
    return tuple(LayerFile(store.files.blob_path(digest), size, diff_id) for (digest, size), diff_id in found)
