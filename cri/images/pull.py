"""Pulling one image, step by step; runs in threads, called off through a Cancel."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from cri.images import manifests
from cri.images.cancel import Cancel
from cri.images.catalogue import Image
from cri.images.convert import convert
from cri.images.db import ImageRow
from cri.images.errors import Corrupt
from cri.images.fetch import digest_of, fetch_document, fetch_layer, fetch_manifest, matches
from cri.images.layers import Budget, LayerIndex, file_chunks, read_layer
from cri.images.manifests import Config, Descriptor, Manifest, Platform
from cri.images.names import Reference
from cri.images.places import Place, first_of
from cri.images.policy import Policy
from cri.images.progress import Job, Meter, Meters, Stage, State, layer_meters
from cri.images.settings import ImageSettings
from cri.images.sharing import Gate, Gates, Shared
from cri.images.store import ImageStore, now
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Missing

_MAX_NESTING = 2
declare(
    "image-pull.resolved",
    "image-pull.layer-fetched",
    "image-pull.layer-named",
    "image-pull.filesystem-built",
    "image-pull.filesystem-recorded",
    "image-pull.recorded",
)


@dataclass(frozen=True)
class Resolved:
    """An image found: the digest it was asked for by (an index's or its own), and all but its layers."""

    target_digest: str
    manifest_digest: str
    manifest_bytes: bytes
    manifest: Manifest
    config_bytes: bytes
    config: Config

    @property
    def chain_id(self) -> str:
        """Names the stack of layers (OCI image-spec, config.md, "Layer ChainID")."""
        chain = ""
        for diff_id in self.config.diff_ids:
            chain = digest_of(f"{chain} {diff_id}".encode()) if chain else diff_id
        return chain or f"sha256:{hashlib.sha256().hexdigest()}"


class Puller:
    """Turns what places offer into images of the store. All pulls use one, to share work and bounds."""

    def __init__(self, store: ImageStore, settings: ImageSettings, platform: Platform) -> None:
        self._store = store
        self._settings = settings
        self._platform = platform
        self._layers: Shared[LayerIndex] = Shared()
        self._filesystems: Shared[None] = Shared()
        # By host, so that one that stalls holds up nobody else's images.
        self._downloads = Gates(2 * settings.downloads_per_image)
        self._conversions = Gate(settings.conversions)
        self._meters = Meters()
        self._policy = Policy(settings.policy)

    def pull(self, reference: Reference, places: Sequence[Place], job: Job) -> Image:
        """The image a name stands for now, in the store under that name."""
        self._policy.check_name(reference)
        resolved = self._resolve(reference, places, job.cancel)
        names = [reference.at(resolved.target_digest)]
        if reference.tag is not None:
            names.append(str(reference))
        return self.keep(resolved, tuple(names), places, job)

    def keep(self, resolved: Resolved, names: tuple[str, ...], places: Sequence[Place], job: Job) -> Image:
        """Fetches what the store lacks of an image, builds its filesystem, and names it."""
        store, manifest = self._store, resolved.manifest
        meters = layer_meters(self._meters, manifest.layers)
        job.progress.plan(meters, self._meters.of(resolved.chain_id, 0))
        job.progress.enter(Stage.FETCHING)
        checkpoint("image-pull.resolved")
        with store.leasing(resolved.chain_id, [layer.digest for layer in manifest.layers]):
            self._filesystems.run(
                resolved.chain_id, lambda: self._build_filesystem(resolved, meters, places, job), job.cancel
            )
            layers = tuple((layer.digest, layer.size) for layer in manifest.layers if _is_file(store, layer))
            row = ImageRow(
                manifest.config.digest,
                resolved.chain_id,
                resolved.manifest_digest,
                resolved.manifest_bytes,
                resolved.config_bytes,
                layers,
                now(),
            )
            job.cancel.check()
            image = store.add_image(row, names)
            checkpoint("image-pull.recorded")
            return image

    def fits(self, platform: Platform | None) -> bool:
        """Whether something for this platform (None: not said) may run here."""
        return platform is None or manifests.rank(platform, self._platform) is not None

    def from_manifest(
        self, target: Descriptor, data: bytes, said: str, places: Sequence[Place], cancel: Cancel
    ) -> Resolved:
        """Follows an index to the manifest for this platform, and a manifest to its configuration.

        said: the media type its transport says, "" when it says none. Raises Corrupt when data is not the
        target.
        """
        if len(data) != target.size or not matches(data, target.digest):
            raise Corrupt("read", target.digest, "the manifest has another digest or size")
        document = manifests.parse_json(data, target.digest)
        limits, subject = self._settings.limits, target.digest
        digest = target.digest
        for _ in range(_MAX_NESTING + 1):
            kind = manifests.kind_of(document, said, subject)
            if kind in (manifests.OCI_MANIFEST, manifests.DOCKER_MANIFEST):
                break
            entries = manifests.index_entries(document, subject)
            target = manifests.choose(entries, self._platform, subject)
            said = target.media_type
            data = fetch_manifest(places, target, limits.manifest_bytes, cancel)
            document = manifests.parse_json(data, target.digest)
        else:
            raise Corrupt("read", subject, f"indexes nested deeper than {_MAX_NESTING}")
        manifest = manifests.manifest(document, target.digest, limits.layers)
        config_bytes = fetch_document(places, manifest.config, limits.config_bytes, cancel)
        config = manifests.config(config_bytes, manifest.config.digest, len(manifest.layers))
        if config.platform.os and manifests.rank(config.platform, self._platform) is None:
            raise Missing("find platform", subject, f"it is for {config.platform}, not {self._platform}")
        return Resolved(digest, target.digest, data, manifest, config_bytes, config)

    def _resolve(self, reference: Reference, places: Sequence[Place], cancel: Cancel) -> Resolved:
        most = self._settings.limits.manifest_bytes
        asked = [place for place in places if place.resolves or reference.digest is not None]
        if not asked:
            raise Missing("pull", str(reference), "no configured host may resolve tags", "see hosts.toml")

        def attempt(place: Place) -> tuple[bytes, str]:
            data, said = place.manifest(reference.target, most, cancel)
            if reference.digest is not None and not matches(data, reference.digest):
                raise Corrupt("pull", f"{reference} at {place.name}", "the manifest has another digest")
            # Whoever answers with a login page instead of a manifest does not have the image.
            manifests.parse_json(data, f"{reference} at {place.name}")
            return data, said

        data, said = first_of(asked, attempt, cancel)
        document = manifests.parse_json(data, str(reference))
        kind = manifests.kind_of(document, said, str(reference))
        target = Descriptor(kind, reference.digest or digest_of(data), len(data))
        self._policy.check_content(reference, target, cancel)
        return self.from_manifest(target, data, said, places, cancel)

    def _build_filesystem(
        self, resolved: Resolved, meters: Sequence[Meter], places: Sequence[Place], job: Job
    ) -> None:
        store, chain_id, cancel = self._store, resolved.chain_id, job.cancel
        if store.has_filesystem(chain_id):
            for meter in meters:
                if meter.state is State.WAITING:
                    meter.done()
            return
        indexes = self._fetch_layers(resolved, meters, places, cancel)
        blobs = [store.files.blob_path(layer.digest) for layer in resolved.manifest.layers]
        job.progress.enter(Stage.BUILDING)
        with self._conversions.passing(cancel), store.files.work_file(chain_id.partition(":")[2]) as work:
            built = convert(blobs, indexes, work, self._settings, cancel, self._meters.of(chain_id, 0))
            checkpoint("image-pull.filesystem-built")
            store.add_filesystem(work, chain_id, dict(built.accounts), built.digest)
            checkpoint("image-pull.filesystem-recorded")

    def _fetch_layers(
        self, resolved: Resolved, meters: Sequence[Meter], places: Sequence[Place], cancel: Cancel
    ) -> list[LayerIndex]:
        """All layers at once, a few at a time; the first that fails calls the others off."""
        mine, budget = Cancel(), Budget(resolved.manifest_digest, self._settings.limits)

        def fetch(layer: Descriptor, diff_id: str, meter: Meter) -> LayerIndex:
            index = self._layer(layer, diff_id, meter, places, mine)
            budget.spend(index)
            return index

        asked = list(zip(resolved.manifest.layers, resolved.config.diff_ids, meters, strict=True))
        with (
            cancel.interrupting(mine.set),
            ThreadPoolExecutor(self._settings.downloads_per_image, "layer") as threads,
        ):
            futures = [threads.submit(fetch, *one) for one in asked]
            failed = [
                future for future in wait(futures, return_when=FIRST_EXCEPTION).done if future.exception()
            ]
            if failed:
                mine.set()
                threads.shutdown(cancel_futures=True)
                cancel.check()
            # The one that failed first, not those that were called off because of it.
            return [future.result() for future in (*failed, *futures)][len(failed) :]

    def _layer(
        self, layer: Descriptor, diff_id: str, meter: Meter, places: Sequence[Place], cancel: Cancel
    ) -> LayerIndex:
        def fetch() -> LayerIndex:
            return self._fetch_layer(layer, diff_id, meter, places, cancel)

        return self._layers.run((layer.digest, diff_id), fetch, cancel)

    def _fetch_layer(
        self, layer: Descriptor, diff_id: str, meter: Meter, places: Sequence[Place], cancel: Cancel
    ) -> LayerIndex:
        cancel.check()
        store, limits = self._store, self._settings.limits
        path = store.files.blob_path(layer.digest)
        if path.is_file():
            if path.stat().st_size != layer.size:
                raise Corrupt(
                    "pull", layer.digest, f"the manifest says {layer.size} bytes, it has another length"
                )
            meter.done()
            return read_layer(file_chunks(path), layer.size, diff_id, limits)
        with (
            self._downloads.passing(places[0].name, cancel),
            meter.running(),
            store.files.work_file(layer.digest.partition(":")[2]) as work,
        ):
            index = fetch_layer(places, layer, diff_id, work, limits, cancel, meter)
            checkpoint("image-pull.layer-fetched")
            store.files.put(work, path)
            checkpoint("image-pull.layer-named")
        return index


def _is_file(store: ImageStore, layer: Descriptor) -> bool:
    # An image whose filesystem was there already may have come with other blobs, or without any.
    return store.files.blob_path(layer.digest).is_file()
