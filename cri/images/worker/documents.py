"""Manifests and configurations read in workers, one for each document.

The process that talks to a registry does not read them: if it is taken over, it could tell lies about a
document whose digest is right, and that other tenants use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cri.images.bounds.cancel import CancelToken
from cri.images.bounds.fields import Malformed
from cri.images.registry import facts
from cri.images.registry.facts import ImageFacts, IndexFacts, ManifestFacts
from cri.images.registry.manifests import ImageConfig, Platform
from cri.images.registry.reading import MAX_CONFIG_FACTS
from cri.images.worker import jobs
from cri.images.worker.frames import JobOutcome
from cri.images.worker.workers import LayerWorkers
from daemonkit.faults import Broken

T = TypeVar("T")
# Those of a configuration, and as many of a manifest: 512 layers take less.
_FACTS_BYTES = 2 * MAX_CONFIG_FACTS


class DocumentReader:
    """Reads documents for one platform."""

    def __init__(self, workers: LayerWorkers, platform: Platform) -> None:
        self._workers = workers
        self.platform = platform

    def document(
        self, data: bytes, said: str, subject: str, token: CancelToken
    ) -> IndexFacts | ManifestFacts:
        """See registry.reading.read_document()."""
        wanted = (self.platform.os, self.platform.architecture, self.platform.variant)
        found = self._read(jobs.DOCUMENT, (subject, said, wanted), token, data)
        return _unpacked(facts.unpack_document, found, subject)

    def config(self, data: bytes, subject: str, layers: int, token: CancelToken) -> ImageConfig:
        """See registry.reading.read_config()."""
        found = self._read(jobs.CONFIG, (subject, layers), token, data)
        config = _unpacked(facts.unpack_config, found, subject)
        if len(config.diff_ids) != layers:
            cause = f"the process that read it tells of {len(config.diff_ids)} diff ids, not {layers}"
            raise Broken("read", subject, cause)
        return config

    def image(self, manifest: bytes, config: bytes, subject: str, token: CancelToken) -> ImageFacts:
        """See registry.reading.read_image()."""
        found = self._read(jobs.IMAGE, (subject, len(manifest)), token, manifest + config)
        return _unpacked(facts.unpack_image, found, subject)

    def _read(self, job: str, arguments: Sequence[Any], token: CancelToken, data: bytes) -> bytes:
        outcome = JobOutcome(data=_FACTS_BYTES)
        return self._workers.run(job, arguments, token, outcome, lambda said: said.data(_FACTS_BYTES), [data])


def _unpacked(unpack: Callable[[bytes], T], untrusted: bytes, subject: str) -> T:
    try:
        return unpack(untrusted)
    except Malformed as error:
        raise Broken("read", subject, f"the process that read it tells nonsense: {error}") from error
