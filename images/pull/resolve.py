"""Resolves a name to an image's manifest and configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from daemonkit.faults import Missing
from images.bounds.limits import ImageLimits
from images.concurrency import WorkerThreads
from images.image_errors import Corrupt, oversized
from images.pull.candidates import Candidates
from images.pull.fetch import Document, read_config, read_first, read_manifest, read_tagged
from images.registry import manifests
from images.registry.facts import ImageFacts, ManifestFacts
from images.registry.manifests import Descriptor, ImageConfig, Manifest, Platform
from images.registry.names import Reference
from images.registry.sources import ImageSource
from images.worker.documents import DocumentReader

_MAX_NESTING = 2


@dataclass(frozen=True)
class ResolvedImage:
    """An image with its manifest and configuration."""

    manifest_digest: str
    manifest_bytes: bytes
    config_bytes: bytes
    facts: ImageFacts

    @property
    def manifest(self) -> Manifest:
        """Descriptors of the configuration and the layers."""
        return self.facts.manifest.manifest

    @property
    def config(self) -> ImageConfig:
        """Platform and run settings."""
        return self.facts.config

    @property
    def id(self) -> str:
        """The image's id: the digest of its configuration."""
        return self.manifest.config.digest


class Resolver:
    """Resolves names for this platform."""

    def __init__(self, reader: DocumentReader, limits: ImageLimits, threads: WorkerThreads) -> None:
        self._reader = reader
        self.platform = reader.platform
        self._limits = limits
        self._threads = threads

    def fits(self, platform: Platform | None) -> bool:
        """Whether content for a platform (None: unstated) may run here."""
        return platform is None or manifests.rank(platform, self.platform) is not None

    async def find(self, reference: Reference, candidates: Candidates) -> tuple[Descriptor, Document]:
        """The manifest or index of a name."""

        def may(source: ImageSource) -> bool:
            return source.resolves or reference.digest is not None

        if not candidates.in_order(may):
            raise Missing("pull", str(reference), "no configured host may resolve tags", "see hosts.toml")
        read = partial(read_tagged, reference, self._limits, self._reader)
        found = await read_first(self._threads, candidates, read, may)
        return Descriptor(found.facts.kind, found.digest, len(found.data)), found

    async def read(self, target: Descriptor, candidates: Candidates) -> Document:
        """The manifest or index of a descriptor."""
        read = partial(read_manifest, target, self._limits, self._reader)
        return await read_first(self._threads, candidates, read)

    async def resolve(self, target: Document, candidates: Candidates) -> ResolvedImage:
        """Follow an index to the manifest for this platform, and the manifest to its configuration."""
        subject, document = target.digest, target
        for _ in range(_MAX_NESTING + 1):
            facts = document.facts
            if isinstance(facts, ManifestFacts):
                break
            if facts.chosen.size > self._limits.manifest_bytes:
                cause = f"a manifest of {facts.chosen.size} bytes, more than {self._limits.manifest_bytes}"
                raise oversized("pull", facts.chosen.digest, cause, "manifest_bytes")
            document = await self.read(facts.chosen, candidates)
        else:
            raise Corrupt("read", subject, f"indexes nested deeper than {_MAX_NESTING}")
        layers = len(facts.manifest.layers)
        read = partial(read_config, facts.manifest.config, layers, self._limits, self._reader)
        data, config = await read_first(self._threads, candidates, read)
        if config.platform.os and not self.fits(config.platform):
            raise Missing("find platform", subject, f"it is for {config.platform}, not {self.platform}")
        return ResolvedImage(document.digest, document.data, data, ImageFacts(facts, config))
