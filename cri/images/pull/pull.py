"""Pulling one image, from top to bottom: resolve, plan, fetch, build, name.

The order of things is asyncio's.  Sources, layers, filesystems and the index are read and written in worker
threads; a pull that is cancelled has ended once its threads have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

from cri.images.concurrency import CancelToken, SingleFlight, WorkerThreads, task_group
from cri.images.errors import Corrupt
from cri.images.layer import layer_cache
from cri.images.layer.layers import LayerBudget, LayerIndex, file_chunks, read_layer
from cri.images.policy.policy import Policy
from cri.images.pull.build import FilesystemBuilder, LayeredImage
from cri.images.pull.candidates import Candidates
from cri.images.pull.early import EarlyBuild
from cri.images.pull.fetch import download_layer, read_first
from cri.images.pull.progress import Meter, Meters, Progress, Stage
from cri.images.pull.resolve import ResolvedImage, Resolver
from cri.images.registry.credentials import Credentials
from cri.images.registry.health import HostHealth
from cri.images.registry.manifests import Descriptor, Platform
from cri.images.registry.names import Reference
from cri.images.registry.sources import ImageSource, registry_sources
from cri.images.rootfs.stack import Part, parts
from cri.images.settings import ImageSettings
from cri.images.store.catalogue import StoredImage
from cri.images.store.db import ImageRow
from cri.images.store.store import ImageStore, now
from daemonkit.checkpoints import checkpoint
from daemonkit.tasks import complete


class WantedLayer(NamedTuple):
    """A layer on its way. early: a place for the filesystem that it is the topmost layer of."""

    layer: Descriptor
    diff_id: str
    meter: Meter
    candidates: Candidates
    early: EarlyBuild | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Pulls that want the same share it."""
        return self.layer.digest, self.diff_id


class Puller:
    """Turns what sources offer into images of the store. All pulls use one, to share work and bounds."""

    def __init__(
        self, store: ImageStore, settings: ImageSettings, platform: Platform, threads: WorkerThreads
    ) -> None:
        self.resolver = Resolver(platform, settings.limits, threads)
        self._store = store
        self._settings = settings
        self._threads = threads
        self._policy = Policy(settings.policy, threads)
        self._layers: SingleFlight[LayerIndex] = SingleFlight()
        # By host, so that one that stalls holds up nobody else's images.
        self._downloads: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._health = HostHealth()
        self._meters = Meters()
        self._builder = FilesystemBuilder(store, settings, self._meters, threads)

    async def pull(self, reference: Reference, credentials: Credentials, progress: Progress) -> StoredImage:
        """The image a name stands for at its registry now, in the store under that name."""
        self._policy.check_name(reference)
        sources = await self._threads.run(lambda _: registry_sources(reference, credentials, self._settings))
        candidates = Candidates(sources, reference.host, self._health, progress)
        target, document = await self.resolver.find(reference, candidates)
        await self._policy.check_content(reference, target)
        image = await self.resolver.resolve(document, candidates)
        names = [reference.at(target.digest)]
        if reference.tag is not None:
            names.append(str(reference))
        return await self.keep(image, tuple(names), candidates, progress)

    async def keep(
        self, image: ResolvedImage, names: tuple[str, ...], candidates: Candidates, progress: Progress
    ) -> StoredImage:
        """Fetch what the store lacks of an image, build its filesystems, and name it."""
        layers, has = image.manifest.layers, self._store.has_filesystem
        stack = parts(image.config.diff_ids, [layer.size for layer in layers], self._settings.part_bytes)
        chain_ids = [part.chain_id for part in stack]
        meters = self._meters.of_layers(layers)
        progress.plan(meters, [self._meters.of(chain_id, 0) for chain_id in chain_ids])
        progress.enter(Stage.FETCHING)
        checkpoint("image-pull.resolved")
        known = self._store.stack(image.manifest.config.digest)
        async with self._leasing([*chain_ids, *known], [layer.digest for layer in layers]):
            # It may have been cut into other parts: by an earlier version, or by layers compressed otherwise.
            if known and all(map(has, known)):
                chain_ids = known
            if all(map(has, chain_ids)):
                _skip(meters)
            else:
                await self._fetch_and_build(image, stack, meters, candidates, progress)
            return await complete(self._threads.run(lambda _: self._name(image, chain_ids[-1], names)))

    async def _fetch_and_build(
        self,
        image: ResolvedImage,
        stack: Sequence[Part],
        meters: Sequence[Meter],
        candidates: Candidates,
        progress: Progress,
    ) -> None:
        """Each filesystem is built as soon as its layers are here, while further ones are on their way."""
        layers, diff_ids = image.manifest.layers, image.config.diff_ids
        verify = partial(self._verify, image, meters, candidates)
        layered = LayeredImage(image.manifest_digest, stack, layers, diff_ids, verify)
        below, order, planner = await self._builder.begin(layered)
        start = sum(len(cache.layers) for cache in below)
        _skip(meters[:start])
        budget = LayerBudget(image.manifest_digest, self._settings.limits)
        for cache in below:
            budget.spend(*cache.spent[2:])
        slots = asyncio.Semaphore(self._settings.downloads_per_image)
        async with self._builder.early(stack[len(below) :]) as early, task_group() as group:
            coming = {}
            for number in order:
                wanted = WantedLayer(
                    layers[number], diff_ids[number], meters[number], candidates, early.get(number)
                )
                coming[number] = group.create_task(self._layer(wanted, slots, budget))
            for part in stack[len(below) :]:
                indexes = (coming.pop(number) for number in range(start, part.end))
                planned = await self._builder.plan(layered, part, indexes, planner)
                group.create_task(self._builder.build(layered, planned, early[part.end - 1]))
                start = part.end
            progress.enter(Stage.BUILDING)

    async def _layer(self, wanted: WantedLayer, slots: asyncio.Semaphore, budget: LayerBudget) -> LayerIndex:
        """A layer's index, once the layer is in the store."""
        async with slots:
            index = await self._layers.run(wanted.key, lambda: self._fetch(wanted))
        budget.spend(len(index.entries), index.weight, index.plain_bytes)
        return index

    async def _verify(
        self, image: ResolvedImage, meters: Sequence[Meter], candidates: Candidates, number: int
    ) -> None:
        """Read a layer of which only the list was needed so far."""
        layer, diff_id = image.manifest.layers[number], image.config.diff_ids[number]
        wanted = WantedLayer(layer, diff_id, meters[number], candidates)
        path = self._store.files.layer_cache_path(layer.digest)
        await self._threads.run(lambda _: path.unlink(missing_ok=True))
        # Another pull may just be reading the list.
        while not (await self._layers.run(wanted.key, lambda: self._fetch(wanted))).verified:
            await self._threads.run(lambda _: path.unlink(missing_ok=True))

    async def _fetch(self, wanted: WantedLayer) -> LayerIndex:
        kept = await self._threads.run(partial(self._read_kept, wanted))
        if kept is not None:
            return kept
        most, candidates = 2 * self._settings.downloads_per_image, wanted.candidates
        async with self._downloads.setdefault(candidates.first.name, asyncio.Semaphore(most)):
            with wanted.meter.running():
                return await read_first(self._threads, candidates, partial(self._download, wanted))

    def _read_kept(self, wanted: WantedLayer, token: CancelToken) -> LayerIndex | None:
        """The index of a layer that the store has; None: it has not."""
        layer, diff_id, files = wanted.layer, wanted.diff_id, self._store.files
        path = files.blob_path(layer.digest)
        if not path.is_file():
            return None
        if path.stat().st_size != layer.size:
            cause = f"the manifest says {layer.size} bytes, it has another length"
            raise Corrupt("pull", layer.digest, cause)
        wanted.meter.done()
        index = layer_cache.load(files.layer_cache_path(layer.digest), layer.digest, diff_id)
        if index is None:
            index = read_layer(file_chunks(path, token), layer.size, diff_id, self._settings.limits)
            self._keep_list(layer, diff_id, index)
        return index

    def _download(self, wanted: WantedLayer, source: ImageSource, token: CancelToken) -> LayerIndex:
        """A layer into the store, from one source."""
        layer, diff_id, early = wanted.layer, wanted.diff_id, wanted.early
        files, limits = self._store.files, self._settings.limits
        with ExitStack() as undo:
            work = undo.enter_context(files.work_file(layer.digest.partition(":")[2]))
            reader = undo.enter_context(early.reading(diff_id, token)) if early is not None else None
            index = download_layer(layer, diff_id, work, limits, wanted.meter, source, token, reader)
            checkpoint("image-pull.layer-fetched")
            files.put(work, files.blob_path(layer.digest))
            checkpoint("image-pull.layer-named")
        self._keep_list(layer, diff_id, index)
        return index

    def _keep_list(self, layer: Descriptor, diff_id: str, index: LayerIndex) -> None:
        """Spare later images the reading of a layer that has just been verified."""
        files = self._store.files
        with files.work_file(layer.digest.partition(":")[2]) as work:
            layer_cache.write(work, layer.digest, diff_id, index)
            work.rename(files.layer_cache_path(layer.digest))

    def _name(self, image: ResolvedImage, chain_id: str, names: tuple[str, ...]) -> StoredImage:
        """The image under its names; its filesystems and layers are here."""
        # An image whose filesystem was there already may have come with other blobs, or without any.
        blob_path = self._store.files.blob_path
        here = [layer for layer in image.manifest.layers if blob_path(layer.digest).is_file()]
        row = ImageRow(
            image.manifest.config.digest,
            chain_id,
            image.manifest_digest,
            image.manifest_bytes,
            image.config_bytes,
            tuple((layer.digest, layer.size) for layer in here),
            now(),
        )
        stored = self._store.add_image(row, names)
        checkpoint("image-pull.recorded")
        return stored

    @asynccontextmanager
    async def _leasing(self, chain_ids: Sequence[str], digests: Sequence[str]) -> AsyncIterator[None]:
        """While the body runs, the store removes none of these filesystems and layers."""
        store = self._store
        try:
            await complete(self._threads.run(lambda _: store.lease(chain_ids, digests)))
            yield
        finally:
            await complete(self._threads.run(lambda _: store.end_lease(chain_ids, digests)))


def _skip(meters: Sequence[Meter]) -> None:
    for meter in meters:
        meter.skip()
