"""Facts of a manifest or an index, as the process that talks to the registry states them.

A process of its own for each small document takes as long as reading the document. The daemon therefore uses
the facts of the process that has the document anyway, if the bytes bear them out: each digest must be in the
document, word for word. A process that was taken over can then only choose among the document's own digests.
Everything that these digests name is checked by others: layers by the diff ids of the configuration, the
configuration by a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from images.bounds.fields import Malformed
from images.registry.facts import IndexFacts, ManifestFacts, unpack_document
from images.registry.manifests import Descriptor

MAX_DOCUMENT = 64 << 10
"""Most bytes of a document that is read this way."""
MAX_CLAIMS = 48 << 10
"""Most bytes of packed facts, which are part of one message."""
# As compact and as indented JSON have it.
_MEMBERS = ('"digest":"{}"', '"digest": "{}"')


def borne_out(data: bytes, untrusted: bytes, layers: int) -> IndexFacts | ManifestFacts | None:
    """The facts that ``untrusted`` states of a document, if its bytes have all of their digests; else None.

    data: the document, whose own digest is right; layers: the most that an image may have.
    """
    if not untrusted or len(data) > MAX_DOCUMENT:
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
