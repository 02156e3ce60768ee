"""Resolves a name to everything about an image except its layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cri.images.bounds.limits import ImageLimits
from cri.images.concurrency import WorkerThreads
from cri.images.errors import Corrupt, oversized
from cri.images.pull.candidates import Candidates
from cri.images.pull.fetch import Document, read_config, read_first, read_manifest, read_tagged
from cri.images.registry import manifests
from cri.images.registry.manifests import Descriptor, ImageConfig, Manifest, Platform
from cri.images.registry.names import Reference
from cri.images.registry.sources import ImageSource
from daemonkit.faults import Missing

_MAX_NESTING = 2


@dataclass(frozen=True)
class ResolvedImage:
    """An image whose manifest and configuration are here."""

    manifest_digest: str
    manifest_bytes: bytes
    manifest: Manifest
    config_bytes: bytes
    config: ImageConfig

    @property
    def id(self) -> str:
        """The image's id: the digest of its configuration."""
        return self.manifest.config.digest


class Resolver:
    """Resolves names for this platform."""

    def __init__(self, platform: Platform, limits: ImageLimits, threads: WorkerThreads) -> None:
        self._platform = platform
        self._limits = limits
        self._threads = threads

    def fits(self, platform: Platform | None) -> bool:
        """Whether something for this platform (None: not said) may run here."""
        return platform is None or manifests.rank(platform, self._platform) is not None

    async def find(self, reference: Reference, candidates: Candidates) -> tuple[Descriptor, Document]:
        """What a name stands for: a manifest or an index."""

        def may(source: ImageSource) -> bool:
            return source.resolves or reference.digest is not None

        if not candidates.in_order(may):
            raise Missing("pull", str(reference), "no configured host may resolve tags", "see hosts.toml")
        read = partial(read_tagged, reference, self._limits)
        found = await read_first(self._threads, candidates, read, may)
        kind = manifests.kind_of(found.json, found.said, str(reference))
        return Descriptor(kind, found.digest, len(found.data)), found

    async def read(self, target: Descriptor, candidates: Candidates) -> Document:
        """The manifest or index that a descriptor promises."""
        return await read_first(self._threads, candidates, partial(read_manifest, target, self._limits))

    async def resolve(self, target: Document, candidates: Candidates) -> ResolvedImage:
        """Follow an index to the manifest for this platform, and that to its configuration."""
        subject, document = target.digest, target
        for _ in range(_MAX_NESTING + 1):
            kind = manifests.kind_of(document.json, document.said, subject)
            if kind in (manifests.OCI_MANIFEST, manifests.DOCKER_MANIFEST):
                break
            entry = manifests.choose(manifests.index_entries(document.json, subject), self._platform, subject)
            if entry.size > self._limits.manifest_bytes:
                cause = f"a manifest of {entry.size} bytes, more than {self._limits.manifest_bytes}"
                raise oversized("pull", entry.digest, cause, "manifest_bytes")
            document = (await self.read(entry, candidates))._replace(said=entry.media_type)
        else:
            raise Corrupt("read", subject, f"indexes nested deeper than {_MAX_NESTING}")
        manifest = manifests.manifest(document.json, document.digest, self._limits.layers)
        read = partial(read_config, manifest.config, len(manifest.layers), self._limits)
        data, config = await read_first(self._threads, candidates, read)
        if config.platform.os and not self.fits(config.platform):
            raise Missing("find platform", subject, f"it is for {config.platform}, not {self._platform}")
        return ResolvedImage(document.digest, document.data, manifest, data, config)
