"""Lends a pulled image, byte for byte, to another store on this host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images.registry.manifests import Descriptor
from images.store.catalogue import StoredImage
from images.store.export import kept_layers
from images.store.store import ImageStore


@dataclass(frozen=True)
class LentImage:
    """The parts of an image. The layer files stay during the loan, and may be damaged."""

    target: Descriptor
    manifest: bytes
    config: Descriptor
    config_bytes: bytes
    layers: tuple[tuple[Descriptor, Path], ...]


@contextmanager
def lent(store: ImageStore, image: StoredImage) -> Iterator[LentImage]:
    """The image, lent while the body runs; Refused if a layer is not kept, Missing if the image is gone."""
    row, stack = store.stored(image)
    facts = store.facts(image).manifest
    manifest = facts.manifest
    digests = [layer.digest for layer in manifest.layers]
    with store.leasing([one.chain_id for one in stack], digests):
        kept_layers(store, image, manifest, "hand over")
        yield LentImage(
            Descriptor(facts.kind, row.manifest_digest, len(row.manifest)),
            row.manifest,
            manifest.config,
            row.config,
            tuple((layer, store.files.blob_path(layer.digest)) for layer in manifest.layers),
        )
