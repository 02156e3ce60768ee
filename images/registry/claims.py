"""Checks facts of a manifest or an index from the process that talks to the registry.

A separate process for each small document takes as long as reading the document. The daemon therefore uses
the facts of the process that downloaded the document, if the bytes confirm them: each digest must be in the
document, word for word. A compromised process can then only choose among the document's own digests. The
content behind these digests is checked separately: layers by the diff ids of the configuration, the
configuration by another process.
"""

from __future__ import annotations

from collections.abc import Iterable

from images.bounds.fields import Malformed
from images.registry.facts import IndexFacts, ManifestFacts, unpack_document
from images.registry.manifests import Descriptor

MAX_DOCUMENT_BYTES = 64 << 10
"""Size limit in bytes of a document for this method."""
MAX_CLAIMS_BYTES = 48 << 10
"""Size limit in bytes of packed facts; they are part of one message."""
# In compact JSON and in indented JSON.
_MEMBERS = ('"digest":"{}"', '"digest": "{}"')


def borne_out(data: bytes, untrusted: bytes, layers: int) -> IndexFacts | ManifestFacts | None:
    """The facts that ``untrusted`` states of a document, if the bytes contain all their digests; else None.

    data: the document, with a verified digest; layers: limit on an image's layers.
    """
    if not untrusted or len(data) > MAX_DOCUMENT_BYTES:
        return None
    try:
        found = unpack_document(untrusted)
    except Malformed:
        return None
    if isinstance(found, IndexFacts):
        return found if _names(data, [found.chosen]) else None
    manifest = found.manifest
    if len(manifest.layers) > layers or not _names(data, (manifest.config, *manifest.layers)):
        return None
    return found


def _names(data: bytes, descriptors: Iterable[Descriptor]) -> bool:
    return all(any(form.format(one.digest).encode() in data for form in _MEMBERS) for one in descriptors)
