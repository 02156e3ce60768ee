"""Reads manifests and configurations in workers, each in a process of its own.

The process that talks to a registry is not trusted with documents (except as in registry/claims.py). A
compromised process could report false facts about a document with a right digest, and other tenants use the
same document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from images.bounds.cancel import CancelToken
from images.bounds.fields import FieldReader, Malformed
from images.registry import claims
from images.registry.facts import (
    ImageFacts,
    IndexFacts,
    ManifestFacts,
    unpack_config,
    unpack_document,
    unpack_image,
)
from images.registry.manifests import ImageConfig, Platform
from images.registry.reading import MAX_CONFIG_FACTS_BYTES
from images.registry.sources import GivenManifest
from images.worker import jobs
from images.worker.answer_frames import JobOutcome
from images.worker.workers import LayerWorkers

T = TypeVar("T")
# Facts of a configuration, and the same for a manifest: 512 layers take less.
_FACTS_BYTES = 2 * MAX_CONFIG_FACTS_BYTES


class DocumentReader:
    """Reads documents for one platform."""

    def __init__(self, workers: LayerWorkers, platform: Platform) -> None:
        self._workers = workers
        self.platform = platform

    def document(
        self, given: GivenManifest, subject: str, token: CancelToken, promised: str = ""
    ) -> IndexFacts | ManifestFacts:
        """Facts of a document whose digest is right; see registry.reading.read_document().

        promised: the media type in the index, which decides about a document that does not say its own type.
        """
        facts = claims.borne_out(given.data, given.claims, self._workers.limits.layers)
        if facts is not None and promised in ("", facts.kind):
            return facts
        wanted = (self.platform.os, self.platform.architecture, self.platform.variant)
        arguments = (subject, promised or given.media_type, wanted)
        return self._read(jobs.DOCUMENT, arguments, token, given.data, unpack_document)

    def config(self, data: bytes, subject: str, layers: int, token: CancelToken) -> ImageConfig:
        """See registry.reading.read_config()."""

        def unpack(untrusted: bytes) -> ImageConfig:
            config = unpack_config(untrusted)
            if len(config.diff_ids) != layers:
                raise Malformed(f"{len(config.diff_ids)} diff ids of {layers} layers")
            return config

        return self._read(jobs.CONFIG, (subject, layers), token, data, unpack)

    def image(self, manifest: bytes, config: bytes, subject: str, token: CancelToken) -> ImageFacts:
        """See registry.reading.read_image()."""
        arguments = (subject, len(manifest))
        return self._read(jobs.IMAGE, arguments, token, manifest + config, unpack_image)

    def _read(
        self,
        job: str,
        arguments: Sequence[Any],
        token: CancelToken,
        data: bytes,
        unpack: Callable[[bytes], T],
    ) -> T:
        def decode(answer: FieldReader) -> T:
            return unpack(answer.data(_FACTS_BYTES))

        return self._workers.run(job, arguments, token, JobOutcome(data=_FACTS_BYTES), decode, [data])
