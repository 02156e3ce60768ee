"""Exports images as an OCI image layout (image-spec v1.1, image-layout.md).

Manifests, configurations and compressed layers are exported byte for byte. Exception: a manifest in Docker's
format becomes an OCI manifest, because skopeo and umoci find no other in a layout. The image's id stays, but
the manifest's digest changes. Manifests for other platforms are not stored, and not exported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from daemonkit.faults import Refused
from images.bounds.cancel import CancelToken
from images.bounds.digests import VerifiedChunks, digest_of, matches
from images.image_errors import Corrupt
from images.layer.layers import file_chunks
from images.registry import manifests
from images.registry.manifests import Descriptor, Manifest
from images.store.catalogue import StoredImage
from images.store.store import ImageStore

CHUNK_BYTES = 1 << 20
Piece: TypeAlias = "Note | LayoutFile | bytes"
_DOCKER_LAYER = "application/vnd.docker.image.rootfs."
_OCI_LAYER = "application/vnd.oci.image.layer."
_OCI_KINDS = {"diff.tar": "v1.tar", "foreign.diff.tar": "nondistributable.v1.tar"}


class LayoutFile(NamedTuple):
    """Header of a file in the layout; the data follows. path: relative; size: in bytes."""

    path: str
    size: int


class Note(NamedTuple):
    """A note for people about an export."""

    text: str


class Wanted(NamedTuple):
    """An image, and the tags for its export."""

    image: StoredImage
    tags: Sequence[str]


def pieces(store: ImageStore, wanted: Sequence[Wanted]) -> Generator[Piece, None, None]:
    """Notes, then the files of the layout, each followed by its data in chunks; blocks.

    Raises Refused before the first piece if a layer is missing, and midway if a layer is damaged.
    """
    with ExitStack() as leases:
        notes: list[Note] = []
        small: dict[str, bytes] = {}
        layers: dict[str, int] = {}
        entries: list[dict[str, Any]] = []
        short = Counter(tag.rpartition(":")[2] for one in wanted for tag in one.tags)
        for one in wanted:
            row, stack = store.stored(one.image)
            kept = [digest for digest, _ in row.layers]
            leases.enter_context(store.leasing([fs.chain_id for fs in stack], kept))
            for digest, data in ((row.manifest_digest, row.manifest), (row.id, row.config)):
                if not matches(data, digest):
                    raise _damaged(row.id, f"its document {digest} no longer has its digest")
            kind, parsed = store.facts(one.image).manifest
            layers |= _kept_layers(store, one.image, parsed)
            manifest = row.manifest
            if kind != manifests.OCI_MANIFEST:
                manifest = _as_oci(parsed)
                told = f"{row.id}: its manifest {row.manifest_digest} is in Docker's format"
                notes.append(Note(f"{told}, exported as {digest_of(manifest)} in OCI's"))
            small |= {digest_of(manifest): manifest, row.id: row.config}
            entries += _entries(one, manifest, short)
        yield from notes
        yield from _small("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        index = {"schemaVersion": 2, "mediaType": manifests.OCI_INDEX, "manifests": entries}
        yield from _small("index.json", json.dumps(index).encode())
        for digest, data in small.items():
            yield from _small(_blob_name(digest), data)
        for digest, size in layers.items():
            yield LayoutFile(_blob_name(digest), size)
            yield from _checked(store.files.blob_path(digest), digest, size)


def _kept_layers(store: ImageStore, image: StoredImage, manifest: Manifest) -> Mapping[str, int]:
    """The layers of a manifest, all of them kept, and their sizes; raises Refused."""
    for layer in manifest.layers:
        path = store.files.blob_path(layer.digest)
        if not path.is_file():
            # Never fetched: an image with other compression had brought the same filesystems.
            cause = f"the layer {layer.digest} is not kept"
            hint = "remove it and the images with the same layers, and pull it again"
            raise Refused("export", image.id, cause, hint)
        if path.stat().st_size != layer.size:
            raise _damaged(image.id, f"the layer {layer.digest} no longer has its length")
    return {layer.digest: layer.size for layer in manifest.layers}


def _as_oci(parsed: Manifest) -> bytes:
    """A Docker manifest in OCI format; configuration and layers stay the same."""

    def described(media_type: str, one: Descriptor) -> dict[str, Any]:
        return {"mediaType": media_type, "digest": one.digest, "size": one.size}

    manifest = {
        "schemaVersion": 2,
        "mediaType": manifests.OCI_MANIFEST,
        "config": described(manifests.OCI_CONFIG, parsed.config),
        "layers": [described(_oci_layer(one.media_type), one) for one in parsed.layers],
    }
    return json.dumps(manifest).encode()


def _oci_layer(media_type: str) -> str:
    """The OCI media type of a layer: maps "application/vnd.docker.image.rootfs.*", keeps other types."""
    kind, tar, packing = media_type.removeprefix(_DOCKER_LAYER).partition(".tar")
    if not media_type.startswith(_DOCKER_LAYER) or kind + tar not in _OCI_KINDS:
        return media_type
    return _OCI_LAYER + _OCI_KINDS[kind + tar] + packing.replace(".", "+")


def _entries(one: Wanted, manifest: bytes, short: Mapping[str, int]) -> list[dict[str, Any]]:
    """The image's descriptors in index.json, one for each tag; short: number of uses of each tag."""
    entry: dict[str, Any] = {
        "mediaType": manifests.OCI_MANIFEST,
        "digest": digest_of(manifest),
        "size": len(manifest),
    }
    platform = {key: one.image.config.get(key) for key in ("architecture", "os", "variant")}
    if platform["architecture"] and platform["os"]:
        entry["platform"] = {key: value for key, value in platform.items() if value}
    if not one.tags:
        return [entry]
    return [entry | {"annotations": _annotations(tag, short)} for tag in one.tags]


def _annotations(name: str, short: Mapping[str, int]) -> dict[str, str]:
    """containerd reads the whole name; skopeo and umoci read the ref name: the tag, if unambiguous."""
    tag = name.rpartition(":")[2]
    return {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": tag if short[tag] == 1 else name,
    }


def _small(path: str, data: bytes) -> Iterator[LayoutFile | bytes]:
    yield LayoutFile(path, len(data))
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def _checked(path: Path, digest: str, size: int) -> Iterator[bytes]:
    """A layer's bytes; raises Refused at the end if the digest is wrong."""
    verified = VerifiedChunks(digest, size)
    try:
        yield from verified.passing(file_chunks(path, CancelToken()))
        verified.finish("this host")
    except Corrupt as fault:
        raise _damaged(digest, "the layer no longer has its digest") from fault


def _damaged(subject: str, cause: str) -> Refused:
    return Refused("export", subject, cause, "protect image verify --repair mends it")


def _blob_name(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"
