"""Reads manifests, indexes and image configurations from untrusted JSON into frozen values.

Sources: OCI image-spec v1.1 (manifest.md, image-index.md, config.md) and Docker's
image manifest version 2, schema 2.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import Any

from daemonkit.faults import Invalid, Missing
from images.bounds.digests import is_digest
from images.image_errors import Corrupt, Oversized, oversized

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
ACCEPTED = (OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST)

_LAYERS = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
)
_PACKINGS = ("", "+gzip", ".gzip", "+zstd", ".zstd")
LAYER_TYPES = frozenset(layer + packing for layer in _LAYERS for packing in _PACKINGS)
MAX_INDEX = 1000
MAX_TOKENS = 100_000
"""Limit of texts, objects, lists, and commas of a document: 512 layers with annotations have about 20,000."""
_MARKS = (b'"', b"{", b"[", b",")
_TOKEN = re.compile(rb'"[^"]*"?|[{\[,]')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Platform:
    """An operating system and processor, "linux/amd64" or "linux/arm/v7"; "" for unknown parts."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


@dataclass(frozen=True)
class Descriptor:
    """A promise about bytes: their digest and size."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None
    annotations: tuple[tuple[str, str], ...] = ()

    def annotation(self, key: str) -> str:
        """The annotation's value, "" if missing."""
        return dict(self.annotations).get(key, "")


@dataclass(frozen=True)
class Manifest:
    """One image: the configuration and the layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True)
class ImageConfig:
    """An image's configuration. document: the whole JSON object, including ``config`` (Env, Cmd, ...)."""

    platform: Platform
    diff_ids: tuple[str, ...]
    document: dict[str, Any]


def parse_json(untrusted_bytes: bytes, subject: str) -> dict[str, Any]:
    """Parse a JSON object whose texts can be encoded as UTF-8; raises Corrupt."""
    if _has_too_many_tokens(untrusted_bytes):
        raise Corrupt("read", subject, f"has more than {MAX_TOKENS} values, which no image needs")
    try:
        document = json.loads(untrusted_bytes.decode())
        # Half of a surrogate pair is valid JSON, but no message can carry such a text.
        if _SURROGATE.search(untrusted_bytes):
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Corrupt("read", subject, f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Corrupt("read", subject, "is not a JSON object")
    return document


def _has_too_many_tokens(untrusted_bytes: bytes) -> bool:
    """Counts before parsing: 4 MiB of empty objects take 300 ms and 150 MiB to parse."""
    if sum(map(untrusted_bytes.count, _MARKS)) <= MAX_TOKENS:
        return False
    # Marks in texts do not count. Without escapes, a text ends at the next quotation mark.
    plain = untrusted_bytes.replace(b"\\\\", b"").replace(b'\\"', b"")
    return next(islice(_TOKEN.finditer(plain), MAX_TOKENS, None), None) is not None


def kind_of(document: dict[str, Any], said: str, subject: str) -> str:
    """The media type of a manifest or index: its own, else the transport's, else guessed from members."""
    own = document.get("mediaType")
    for candidate in (own, said.partition(";")[0].strip()):
        if candidate in ACCEPTED:
            # A document of both kinds is ambiguous, and refused.
            if ("manifests" in document) != (candidate in (OCI_INDEX, DOCKER_INDEX)):
                raise Corrupt("read", subject, f"is not the {candidate} it claims to be")
            return str(candidate)
    if own is None and "manifests" in document:
        return OCI_INDEX
    if own is None and "layers" in document and "config" in document:
        return OCI_MANIFEST
    if document.get("schemaVersion") == 1:
        raise Invalid("read", subject, "is a Docker schema 1 manifest", "push it again with a current tool")
    raise Invalid("read", subject, f"is not an image: media type {str(own or said)[:100]!r}")


def descriptor(untrusted: Any, subject: str) -> Descriptor:
    """Read a descriptor of a manifest or an index; raises Corrupt."""
    if not isinstance(untrusted, dict):
        raise Corrupt("read", subject, "a descriptor is not an object")
    media_type, digest, size = (untrusted.get(key) for key in ("mediaType", "digest", "size"))
    if not isinstance(media_type, str) or not isinstance(digest, str) or not is_digest(digest):
        raise Corrupt("read", subject, "a descriptor has no media type or no digest")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 62:
        raise Corrupt("read", subject, f"the descriptor of {digest} has no proper size")
    annotations = untrusted.get("annotations") or {}
    if not isinstance(annotations, dict):
        raise Corrupt("read", subject, f"the annotations of {digest} are not an object")
    strings = tuple((k, v) for k, v in annotations.items() if isinstance(v, str))
    return Descriptor(media_type, digest, size, _platform(untrusted.get("platform")), strings)


def index_entries(document: dict[str, Any], subject: str) -> tuple[Descriptor, ...]:
    """Read the entries of an index, in order."""
    untrusted = document.get("manifests")
    if not isinstance(untrusted, list):
        raise Corrupt("read", subject, "the index lists no manifests")
    if len(untrusted) > MAX_INDEX:
        cause = f"the index lists {len(untrusted)} manifests, more than {MAX_INDEX}"
        raise Oversized("read", subject, cause, "no setting allows more; name the manifest by its digest")
    return tuple(descriptor(entry, subject) for entry in untrusted)


def manifest(document: dict[str, Any], subject: str, max_layers: int) -> Manifest:
    """Read an image manifest; refuses OCI artifacts other than container images."""
    config = descriptor(document.get("config"), subject)
    untrusted_layers = document.get("layers")
    if not isinstance(untrusted_layers, list):
        raise Corrupt("read", subject, "the manifest has no list of layers")
    if len(untrusted_layers) > max_layers:
        raise oversized("read", subject, f"{len(untrusted_layers)} layers, more than {max_layers}", "layers")
    layers = tuple(descriptor(layer, subject) for layer in untrusted_layers)
    if config.media_type not in (OCI_CONFIG, DOCKER_CONFIG) or document.get("artifactType"):
        kind = document.get("artifactType") or config.media_type
        raise Invalid(
            "read", subject, f"is not a container image but an artifact of type {str(kind)[:100]!r}"
        )
    for layer in layers:
        if layer.media_type not in LAYER_TYPES:
            raise Invalid("read", subject, f"the layer {layer.digest} has type {layer.media_type[:100]!r}")
    return Manifest(config, layers)


def config(untrusted_bytes: bytes, subject: str, layers: int) -> ImageConfig:
    """Read an image configuration; the diff ids must match the manifest's layers."""
    document = parse_json(untrusted_bytes, subject)
    rootfs = document.get("rootfs")
    untrusted_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if untrusted_ids is None and layers == 0:
        untrusted_ids = []
    if not isinstance(untrusted_ids, list) or not all(
        isinstance(i, str) and is_digest(i) for i in untrusted_ids
    ):
        raise Corrupt("read", subject, "the configuration has no proper diff ids")
    if len(untrusted_ids) != layers:
        raise Corrupt("read", subject, f"{len(untrusted_ids)} diff ids for {layers} layers")
    inner = document.get("config")
    if inner is not None and not isinstance(inner, dict):
        raise Corrupt("read", subject, "its config is not an object")
    return ImageConfig(_platform(document) or Platform("", ""), tuple(untrusted_ids), document)


def choose(entries: tuple[Descriptor, ...], wanted: Platform, subject: str) -> Descriptor:
    """The entry of an index for a platform: the best variant, then the first listed."""
    images = [entry for entry in entries if entry.media_type in ACCEPTED]
    ranked = [(rank(entry.platform, wanted), entry) for entry in images if entry.platform is not None]
    fitting = [pair for pair in ranked if pair[0] is not None]
    if fitting:
        return min(fitting, key=lambda pair: pair[0] or 0)[1]
    unmarked = [entry for entry in images if entry.platform is None]
    if len(unmarked) == 1:
        # The entry's configuration is checked against the platform later.
        return unmarked[0]
    there = sorted({str(entry.platform) for entry in images if entry.platform is not None})[:20]
    raise Missing("find platform", subject, f"nothing for {wanted}, only {', '.join(there) or 'nothing'}")


_VARIANTS = {"amd64": ("", "v1"), "arm64": ("v8", ""), "arm": ("v7", "v6", "v5", "")}


def rank(platform: Platform | None, wanted: Platform) -> int | None:
    """The rank of a platform for the wanted one, 0 best; None: unusable."""
    if platform is None or (platform.os, platform.architecture) != (wanted.os, wanted.architecture):
        return None
    known = _VARIANTS.get(wanted.architecture, ("",))
    order = (wanted.variant, *known) if wanted.variant else known
    return order.index(platform.variant) if platform.variant in order else None


def _platform(untrusted: Any) -> Platform | None:
    if not isinstance(untrusted, dict):
        return None
    fields = [untrusted.get(key) or "" for key in ("os", "architecture", "variant")]
    if not all(isinstance(field, str) and len(field) < 64 for field in fields):
        return None
    return Platform(*fields)
