"""Pulling one image, from top to bottom: resolve, plan, fetch, build, name.

The order of things is asyncio's.  Sources, layers, filesystems and the index are read and written in worker
threads; a pull that is cancelled has ended once its threads have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

from cri.images.concurrency import CancelToken, SingleFlight, WorkerThreads, task_group
from cri.images.errors import Damaged, DiskFull, NotKept, Oversized, Unpackable, is_disk_full, is_resumable
from cri.images.layer.layers import LayerBudget, LayerIndex
from cri.images.policy.policy import Policy
from cri.images.pull.build import FilesystemBuilder, LayeredImage
from cri.images.pull.candidates import Candidates
from cri.images.pull.fetch import download_layer, read_first
from cri.images.pull.kept import read_kept
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
from cri.images.store.db import ImageRow, now
from cri.images.store.store import ImageStore
from daemonkit.checkpoints import checkpoint
from daemonkit.memory import give_back
from daemonkit.tasks import complete

# Bytes of entries, after which it is worth while to give back what they took.
_LARGE_INDEX = 32 << 20


class Puller:
    """Turns what sources offer into images of the store. All pulls use one, to share work and bounds."""

    def __init__(
        self, store: ImageStore, settings: ImageSettings, platform: Platform, threads: WorkerThreads
    ) -> None:
        self.resolver = Resolver(platform, settings.limits, threads)
        self._store = store
        self._settings = settings
        self._threads = threads
        self.policy = Policy(settings.policy, threads)
        self._layers: SingleFlight[LayerIndex] = SingleFlight()
        # By host, so that one that stalls holds up nobody else's images.
        self._downloads: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._health = HostHealth()
        self._meters = Meters()
        self._builder = FilesystemBuilder(store, settings, self._meters, threads)
        self.unfinished = asyncio.Event()
        """Set when layers of a pull were kept for the next try."""

    async def pull(self, reference: Reference, credentials: Credentials, progress: Progress) -> StoredImage:
        """The image a name stands for at its registry now, in the store under that name."""
        self.policy.check_name(reference)
        candidates = await self.candidates(reference, credentials, progress)
        target, document = await self.resolver.find(reference, candidates)
        await self.policy.check_content(reference, target)
        image = await self.resolver.resolve(document, candidates)
        names = [reference.at(target.digest)]
        if reference.tag is not None:
            names.append(str(reference))
        return await self.keep(image, tuple(names), candidates, progress)

    async def candidates(
        self, reference: Reference, credentials: Credentials, progress: Progress
    ) -> Candidates:
        """The hosts that may have what a name stands for."""
        sources = await self._threads.run(lambda _: registry_sources(reference, credentials, self._settings))
        return Candidates(sources, reference.host, self._health, progress)

    async def keep(
        self,
        image: ResolvedImage,
        names: tuple[str, ...] | None,
        candidates: Candidates | None,
        progress: Progress,
    ) -> StoredImage:
        """Fetch what the store lacks of an image, build its filesystems, and name it.

        names: None leaves those of an image that is here as they are.  candidates: None when all that is
        lacking are filesystems of layers that are here; NotKept when more is.
        """
        layers, has = image.manifest.layers, self._store.has_filesystem
        stack = parts(image.config.diff_ids, [layer.size for layer in layers], self._settings.part_bytes)
        chain_ids = [part.chain_id for part in stack]
        meters = self._meters.of_layers(layers)
        progress.plan(meters, [self._meters.of(chain_id, 0) for chain_id in chain_ids])
        progress.enter(Stage.FETCHING)
        checkpoint("image-pull.resolved")
        known, before = self._store.stack(image.id), self._store.row(image.id)
        digests = [digest for digest, _ in before.layers] if before is not None else []
        async with self._leasing([*chain_ids, *known], [*(layer.digest for layer in layers), *digests]):
            # It may have been cut into other parts: by an earlier version, or by layers compressed otherwise.
            if known and all(map(has, known)):
                chain_ids = known
            if whole := all(map(has, chain_ids)):
                _skip(meters)
            else:
                await self._obtain(image, stack, meters, candidates, progress)
            name = partial(self._name, image, chain_ids[-1], names, not whole)
            return await complete(self._threads.run(lambda _: name()))

    async def _obtain(
        self,
        image: ResolvedImage,
        stack: Sequence[Part],
        meters: Sequence[Meter],
        candidates: Candidates | None,
        progress: Progress,
    ) -> None:
        """Fetch and build, and once more when what is on this host was in the way and is so no longer."""
        unfinished, layers = self._store.unfinished, image.manifest.layers
        await self._threads.run(lambda _: unfinished.make_room(sum(map(self._lacking, layers))))
        damaged = 0
        while True:
            progress.enter(Stage.FETCHING)
            try:
                if await self._fetch_and_build(image, stack, meters, candidates, progress) >= _LARGE_INDEX:
                    await self._threads.run(lambda _: give_back())
                return
            except Damaged:
                # The layer was removed, and is fetched the next time.
                if (damaged := damaged + 1) > len(layers):
                    raise
            except (DiskFull, OSError) as error:
                if not is_disk_full(error):
                    raise
                if not await self._threads.run(lambda _: unfinished.give_back()):
                    raise

    async def _fetch_and_build(
        self,
        image: ResolvedImage,
        stack: Sequence[Part],
        meters: Sequence[Meter],
        candidates: Candidates | None,
        progress: Progress,
    ) -> int:
        """Each filesystem is built as soon as its layers are here, while further ones are on their way.

        Returns how much memory the entries took.
        """
        layers, diff_ids = image.manifest.layers, image.config.diff_ids
        layered = LayeredImage(image.manifest_digest, stack, layers)
        below, order, planner = await self._builder.begin(layered)
        start = sum(len(cache.layers) for cache in below)
        _skip(meters[:start])
        budget = LayerBudget(image.manifest_digest, self._settings.limits)
        for cache in below:
            budget.spend(cache.spent[2:])
        slots = asyncio.Semaphore(self._settings.downloads_per_image)
        async with task_group() as group:
            coming = {}
            for number in order:
                layer = self._layer(
                    layers[number], diff_ids[number], meters[number], candidates, slots, budget
                )
                coming[number] = group.create_task(layer)
            for part in stack[len(below) :]:
                indexes = (coming.pop(number) for number in range(start, part.end))
                planned = await self._builder.plan(layered, part, indexes, planner)
                group.create_task(self._builder.build(layered, planned))
                start = part.end
            # It has all entries in memory, and is not needed while the last filesystems are built.
            del planner
            progress.enter(Stage.BUILDING)
        return budget.spent.memory

    async def fetch(self, image: ResolvedImage, number: int, candidates: Candidates | None) -> None:
        """Fetch one layer of an image, by its number, unless it is here and sound."""
        layer, diff_id = image.manifest.layers[number], image.config.diff_ids[number]
        async with self._leasing([], [layer.digest]):
            await self._shared(layer, diff_id, self._meters.of(layer.digest, layer.size), candidates)

    async def _layer(
        self,
        layer: Descriptor,
        diff_id: str,
        meter: Meter,
        candidates: Candidates | None,
        slots: asyncio.Semaphore,
        budget: LayerBudget,
    ) -> LayerIndex:
        """A layer's index, once the layer is in the store."""
        async with slots:
            index = await self._shared(layer, diff_id, meter, candidates)
        budget.spend(index.cost)
        return index

    async def _shared(
        self, layer: Descriptor, diff_id: str, meter: Meter, candidates: Candidates | None
    ) -> LayerIndex:
        # Who can fetch it does not share the failure of one who cannot.
        key = (layer.digest, diff_id, candidates is not None)
        return await self._layers.run(key, lambda: self._fetch(layer, diff_id, meter, candidates))

    async def _fetch(
        self, layer: Descriptor, diff_id: str, meter: Meter, candidates: Candidates | None
    ) -> LayerIndex:
        kept = await self._threads.run(partial(self._read_kept, layer, diff_id, meter))
        if kept is not None:
            return kept
        if candidates is None:
            cause = f"no sound copy of its layer {layer.digest} is on this host"
            raise NotKept("rebuild", layer.digest, cause)
        most = 2 * self._settings.downloads_per_image
        async with self._downloads.setdefault(candidates.first.name, asyncio.Semaphore(most)):
            with meter.running():
                return await read_first(
                    self._threads, candidates, partial(self._download, layer, diff_id, meter)
                )

    def _read_kept(
        self, layer: Descriptor, diff_id: str, meter: Meter, token: CancelToken
    ) -> LayerIndex | None:
        """The index of a layer that the store has; None: it has not."""
        path = self._store.files.blob_path(layer.digest)
        index = read_kept(layer, diff_id, path, self._settings.limits, token)
        if index is not None:
            meter.done()
        return index

    def _lacking(self, layer: Descriptor) -> int:
        """How many bytes of a layer are still to come."""
        return 0 if self._store.files.blob_path(layer.digest).is_file() else layer.size

    def _download(
        self, layer: Descriptor, diff_id: str, meter: Meter, source: ImageSource, token: CancelToken
    ) -> LayerIndex:
        """A layer into the store, from one source."""
        files = self._store.files
        with files.download_file(layer.digest) as work:
            try:
                index = download_layer(layer, diff_id, work, self._settings.limits, meter, source, token)
            except BaseException as error:
                if is_resumable(error):
                    files.keep_partial(work, layer.digest)
                raise
            checkpoint("image-pull.layer-fetched")
            files.put(work, files.blob_path(layer.digest))
            checkpoint("image-pull.layer-named")
        return index

    def _name(
        self, image: ResolvedImage, chain_id: str, names: tuple[str, ...] | None, built: bool
    ) -> StoredImage:
        """The image under its names; its filesystems and layers are here.

        built: filesystems were, of these very layers; what is stored of an image that was here is replaced.
        """
        # An image whose filesystem was there already may have come with other blobs, or without any.
        blob_path, before = self._store.files.blob_path, self._store.row(image.id)
        here = [layer for layer in image.manifest.layers if blob_path(layer.digest).is_file()]
        kept = tuple((layer.digest, layer.size) for layer in here)
        same = before is not None and before.manifest_digest == image.manifest_digest
        if before is not None and same and not built:
            # Its documents are certain now; which layers it has was decided when it was built.
            kept = before.layers
        row = ImageRow(
            image.id, chain_id, image.manifest_digest, image.manifest_bytes, image.config_bytes, kept, now()
        )
        if names is None:
            stored = self._store.replace_image(row)
        else:
            stored = self._store.add_image(row, names, built or same)
        checkpoint("image-pull.recorded")
        return stored

    @asynccontextmanager
    async def _leasing(self, chain_ids: Sequence[str], digests: Sequence[str]) -> AsyncIterator[None]:
        """While the body runs, the store removes none of these filesystems and layers."""
        store, unfinished = self._store, False
        try:
            await complete(self._threads.run(lambda _: store.lease(chain_ids, digests)))
            yield
        except BaseException as error:
            # Or else the next try would fail as this one did, or needs the room.
            unfinished = not isinstance(error, Unpackable | Oversized) and not is_disk_full(error)
            raise
        finally:
            await complete(self._threads.run(lambda _: store.end_lease(chain_ids, digests, unfinished)))
            if unfinished:
                self.unfinished.set()


def _skip(meters: Sequence[Meter]) -> None:
    for meter in meters:
        meter.skip()
