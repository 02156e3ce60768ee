"""Pulling one image, step by step; runs in threads, called off through a Cancel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cri.images.cancel import Cancel
from cri.images.errors import Corrupt
from cri.images.layer.layers import LayerBudget, LayerIndex, file_chunks, read_layer
from cri.images.policy.policy import Policy
from cri.images.pull import build
from cri.images.pull.build import Builder
from cri.images.pull.fetch import digest_of, fetch_document, fetch_layer, fetch_manifest, matches
from cri.images.pull.progress import Job, Meter, Meters, Stage, State, layer_meters
from cri.images.registry import manifests
from cri.images.registry.manifests import Descriptor, ImageConfig, Manifest, Platform
from cri.images.registry.names import Reference
from cri.images.registry.sources import ImageSource, first_of
from cri.images.rootfs.stack import Part, parts
from cri.images.settings import ImageSettings
from cri.images.sharing import Gates, Shared
from cri.images.store.catalogue import StoredImage
from cri.images.store.db import ImageRow
from cri.images.store.store import ImageStore, now
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Missing

_MAX_NESTING = 2
declare(
    "image-pull.resolved",
    "image-pull.layer-fetched",
    "image-pull.layer-named",
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
    config: ImageConfig


class Puller:
    """Turns what places offer into images of the store. All pulls use one, to share work and bounds."""

    def __init__(self, store: ImageStore, settings: ImageSettings, platform: Platform) -> None:
        self._store = store
        self._settings = settings
        self._platform = platform
        self._layers: Shared[LayerIndex] = Shared()
        # By host, so that one that stalls holds up nobody else's images.
        self._downloads = Gates(2 * settings.downloads_per_image)
        self._meters = Meters()
        self._builder = Builder(store, settings, self._meters)
        self._policy = Policy(settings.policy)

    def pull(self, reference: Reference, places: Sequence[ImageSource], job: Job) -> StoredImage:
        """The image a name stands for now, in the store under that name."""
        self._policy.check_name(reference)
        resolved = self._resolve(reference, places, job.cancel)
        names = [reference.at(resolved.target_digest)]
        if reference.tag is not None:
            names.append(str(reference))
        return self.keep(resolved, tuple(names), places, job)

    def keep(
        self, resolved: Resolved, names: tuple[str, ...], places: Sequence[ImageSource], job: Job
    ) -> StoredImage:
        """Fetches what the store lacks of an image, builds its filesystems, and names it."""
        store, manifest = self._store, resolved.manifest
        stack = self._stack(resolved)
        chain_ids = [part.chain_id for part in stack]
        meters = layer_meters(self._meters, manifest.layers)
        job.progress.plan(meters, [self._meters.of(chain_id, 0) for chain_id in chain_ids])
        job.progress.enter(Stage.FETCHING)
        checkpoint("image-pull.resolved")
        known = store.stack(manifest.config.digest)
        with store.leasing([*chain_ids, *known], [layer.digest for layer in manifest.layers]):
            # It may have been cut into other parts: by an earlier version, or by layers compressed otherwise.
            if known and all(map(store.has_filesystem, known)):
                chain_ids = known
            if all(map(store.has_filesystem, chain_ids)):
                _skip(meters)
            else:
                self._build(resolved, stack, meters, places, job)
            layers = tuple((layer.digest, layer.size) for layer in manifest.layers if _is_file(store, layer))
            row = ImageRow(
                manifest.config.digest,
                chain_ids[-1],
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

    def _stack(self, resolved: Resolved) -> list[Part]:
        sizes = [layer.size for layer in resolved.manifest.layers]
        return parts(resolved.config.diff_ids, sizes, self._settings.part_bytes)

    def fits(self, platform: Platform | None) -> bool:
        """Whether something for this platform (None: not said) may run here."""
        return platform is None or manifests.rank(platform, self._platform) is not None

    def from_manifest(
        self, target: Descriptor, data: bytes, said: str, places: Sequence[ImageSource], cancel: Cancel
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

    def _resolve(self, reference: Reference, places: Sequence[ImageSource], cancel: Cancel) -> Resolved:
        most = self._settings.limits.manifest_bytes
        asked = [place for place in places if place.resolves or reference.digest is not None]
        if not asked:
            raise Missing("pull", str(reference), "no configured host may resolve tags", "see hosts.toml")

        def attempt(place: ImageSource) -> tuple[bytes, str]:
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

    def _build(
        self,
        resolved: Resolved,
        stack: Sequence[Part],
        meters: Sequence[Meter],
        places: Sequence[ImageSource],
        job: Job,
    ) -> None:
        layers = resolved.manifest.layers
        budget = LayerBudget(resolved.manifest_digest, self._settings.limits)

        def fetching(layer: Descriptor, diff_id: str, meter: Meter) -> Callable[[Cancel], LayerIndex]:
            def fetch(cancel: Cancel) -> LayerIndex:
                index = self._layer(layer, diff_id, meter, places, cancel)
                budget.spend(len(index.entries), index.weight, index.plain_bytes)
                return index

            return fetch

        image = build.Image(resolved.manifest_digest, stack, layers)
        below = self._builder.below(image)
        start = sum(len(one.layers) for one in below)
        _skip(meters[:start])
        for one in below:
            budget.spend(*one.spent[2:])

        def fetched() -> None:
            job.progress.enter(Stage.BUILDING)

        asked = list(zip(layers, resolved.config.diff_ids, meters, strict=True))
        wanted = {number: fetching(*asked[number]) for number in range(start, len(asked))}
        self._builder.build(image, below, wanted, fetched, job.cancel)

    def _layer(
        self, layer: Descriptor, diff_id: str, meter: Meter, places: Sequence[ImageSource], cancel: Cancel
    ) -> LayerIndex:
        def fetch() -> LayerIndex:
            return self._fetch_layer(layer, diff_id, meter, places, cancel)

        return self._layers.run((layer.digest, diff_id), fetch, cancel)

    def _fetch_layer(
        self, layer: Descriptor, diff_id: str, meter: Meter, places: Sequence[ImageSource], cancel: Cancel
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


def _skip(meters: Sequence[Meter]) -> None:
    for meter in meters:
        if meter.state is State.WAITING:
            meter.done()


def _is_file(store: ImageStore, layer: Descriptor) -> bool:
    # An image whose filesystem was there already may have come with other blobs, or without any.
    return store.files.blob_path(layer.digest).is_file()
