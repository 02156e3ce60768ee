"""Images as an OCI image layout, out of what the store keeps of them (image-spec v1.1, image-layout.md).

Manifests, configurations and compressed layers are kept byte for byte, so what is exported has the digests
that were pulled.  What an index listed beside this platform's manifest is not kept, and not exported.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from cri.images.digests import matches
from cri.images.registry import manifests
from cri.images.settings import ImageLimits
from cri.images.store.catalogue import StoredImage
from cri.images.store.store import ImageStore
from daemonkit.faults import Refused

CHUNK = 1 << 20


class LayoutFile(NamedTuple):
    """The beginning of a file of the layout; its data follows. path: relative; size: in bytes."""

    path: str
    size: int


class Wanted(NamedTuple):
    """An image, and the tags to export it with."""

    image: StoredImage
    tags: Sequence[str]


def pieces(
    store: ImageStore, wanted: Sequence[Wanted], limits: ImageLimits
) -> Generator[LayoutFile | bytes, None, None]:
    """The files of the layout, each followed by its data in chunks; blocks.

    Raises Refused before the first piece when something is not kept, and on the way when a layer is damaged.
    """
    with ExitStack() as leases:
        small: dict[str, bytes] = {}
        layers: dict[str, int] = {}
        entries: list[dict[str, Any]] = []
        short = Counter(tag.rpartition(":")[2] for one in wanted for tag in set(one.tags))
        for one in wanted:
            row, stack = store.stored(one.image)
            kept = dict(row.layers)
            leases.enter_context(store.leasing([fs.chain_id for fs in stack], list(kept)))
            layers |= _layers(store, one.image, row.manifest, limits)
            for digest, data in ((row.manifest_digest, row.manifest), (row.id, row.config)):
                if not matches(data, digest):
                    raise _damaged(one.image.id, f"its document {digest} no longer has its digest")
                small[digest] = data
            entries += _entries(one, row.manifest, short)
        yield from _small("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        index = {"schemaVersion": 2, "mediaType": manifests.OCI_INDEX, "manifests": entries}
        yield from _small("index.json", json.dumps(index).encode())
        for digest, data in small.items():
            yield from _small(_blob_name(digest), data)
        for digest, size in layers.items():
            yield LayoutFile(_blob_name(digest), size)
            yield from _checked(store.files.blob_path(digest), digest, size)


def _layers(store: ImageStore, image: StoredImage, manifest: bytes, limits: ImageLimits) -> Mapping[str, int]:
    """The layers of a manifest, all of them kept; raises Refused."""
    document = manifests.parse_json(manifest, image.manifest_digest)
    layers = manifests.manifest(document, image.manifest_digest, limits.layers).layers
    for layer in layers:
        path = store.files.blob_path(layer.digest)
        if not path.is_file():
            # Its filesystems were here already, of an image with the same contents compressed otherwise.
            cause = f"the layer {layer.digest} is not kept"
            hint = "remove it and the images with the same layers, and pull it again"
            raise Refused("export", image.id, cause, hint)
        if path.stat().st_size != layer.size:
            raise _damaged(image.id, f"the layer {layer.digest} no longer has its length")
    return {layer.digest: layer.size for layer in layers}


def _entries(one: Wanted, manifest: bytes, short: Mapping[str, int]) -> list[dict[str, Any]]:
    """The image's descriptors in index.json, one for each tag; short: how often each tag is there."""
    document = manifests.parse_json(manifest, one.image.manifest_digest)
    entry: dict[str, Any] = {
        "mediaType": manifests.kind_of(document, "", one.image.manifest_digest),
        "digest": one.image.manifest_digest,
        "size": len(manifest),
    }
    platform = {key: one.image.config.get(key) for key in ("architecture", "os", "variant")}
    if platform["architecture"] and platform["os"]:
        entry["platform"] = {key: value for key, value in platform.items() if value}
    if not one.tags:
        return [entry]
    return [entry | {"annotations": _annotations(tag, short)} for tag in one.tags]


def _annotations(name: str, short: Mapping[str, int]) -> dict[str, str]:
    """containerd reads the whole name, skopeo and umoci the reference: the tag, where that is unambiguous."""
    tag = name.rpartition(":")[2]
    return {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": tag if short[tag] == 1 else name,
    }


def _small(path: str, data: bytes) -> Iterator[LayoutFile | bytes]:
    yield LayoutFile(path, len(data))
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


def _checked(path: Path, digest: str, size: int) -> Iterator[bytes]:
    """A layer's bytes; raises Refused at the end when they have not its digest."""
    algorithm, _, wanted = digest.partition(":")
    running, left = hashlib.new(algorithm), size
    with path.open("rb", buffering=0) as file:
        while left and (chunk := file.read(min(CHUNK, left))):
            running.update(chunk)
            left -= len(chunk)
            yield chunk
    if left or running.hexdigest() != wanted:
        raise _damaged(digest, "the layer no longer has its digest")


def _damaged(subject: str, cause: str) -> Refused:
    return Refused("export", subject, cause, "protect image verify shows what is damaged")


def _blob_name(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"
