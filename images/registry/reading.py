"""Parses the JSON of an image's documents; runs in a worker for one image alone."""

from __future__ import annotations

from images.image_errors import Corrupt, oversized
from images.registry import manifests
from images.registry.facts import (
    ImageFacts,
    IndexFacts,
    ManifestFacts,
    document,
    known_part,
    pack_config,
)
from images.registry.manifests import ImageConfig, Platform

MAX_CONFIG_FACTS_BYTES = 1 << 20
"""Size limit in bytes of a configuration's used members: environment, command, labels, diff ids."""
_INDEXES = (manifests.OCI_INDEX, manifests.DOCKER_INDEX)


def read_document(
    untrusted: bytes, said: str, subject: str, wanted: Platform, layers: int
) -> IndexFacts | ManifestFacts:
    """A manifest, or an index with its entry for a platform.

    said: the media type from the transport. Raises Corrupt, Invalid, Oversized, and Missing if an index has
    no entry for the platform.
    """
    found = manifests.parse_json(untrusted, subject)
    kind = manifests.kind_of(found, said, subject)
    if kind in _INDEXES:
        return IndexFacts(kind, manifests.choose(manifests.index_entries(found, subject), wanted, subject))
    return ManifestFacts(kind, manifests.manifest(found, subject, layers))


def read_config(untrusted: bytes, subject: str, layers: int) -> ImageConfig:
    """A configuration, reduced to the used members; raises Corrupt and Oversized."""
    read = manifests.config(untrusted, subject, layers)
    document_used = document(read.platform, read.diff_ids, *known_part(read.document))
    config = ImageConfig(read.platform, read.diff_ids, document_used)
    if len(pack_config(config)) > MAX_CONFIG_FACTS_BYTES:
        cause = f"its environment, command and labels take more than {MAX_CONFIG_FACTS_BYTES} bytes"
        raise oversized("read", subject, cause, "config_bytes")
    return config


def read_image(manifest: bytes, config: bytes, subject: str, layers: int) -> ImageFacts:
    """Both documents of a stored image."""
    # A manifest needs no platform, and the store has no indexes.
    found = read_document(manifest, "", subject, Platform("", ""), layers)
    if not isinstance(found, ManifestFacts):
        raise Corrupt("read", subject, "its manifest is an index")
    return ImageFacts(found, read_config(config, subject, len(found.manifest.layers)))
