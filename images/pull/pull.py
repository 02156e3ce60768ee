"""Pulls an image in five steps: resolve, plan, fetch, build, name.

asyncio decides the order. Sources, layers, filesystems and the index are read and written in worker threads;
a cancelled pull ends after its threads end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from daemonkit.checkpoints import checkpoint
from daemonkit.observe.steps import step
from daemonkit.tasks import complete
from images.concurrency import WorkerThreads, task_group, tenant
from images.image_errors import Damaged, DiskFull, Oversized, Unpackable
from images.image_settings import ImageSettings
from images.layer.layers import LayerBudget
from images.policy.policy import Policy
from images.pull.build import FilesystemBuilder, LayeredImage
from images.pull.candidates import Candidates, origin_of
from images.pull.eager import EagerBuild
from images.pull.failures import is_disk_full
from images.pull.layers import LayerFetcher, WantedLayer
from images.pull.progress import Meter, Meters, Progress, Stage
from images.pull.resolve import ResolvedImage, Resolver
from images.pull.stored_layers import ListedLayer
from images.registry.credentials import Credentials
from images.registry.facts import pack_image
from images.registry.health import HostHealth
from images.registry.manifests import Descriptor, Platform
from images.registry.names import Reference
from images.registry.sources import registry_sources
from images.rootfs.stack import Part, parts
from images.store.catalogue import StoredImage
from images.store.db import ImageRow, now
from images.store.store import ImageStore
from images.worker.conversation import converse
from images.worker.documents import DocumentReader
from images.worker.workers import LayerWorkers


class Puller:
    """Pulls images from sources into the store. All pulls use the same Puller, to share work and bounds."""

    def __init__(
        self,
        store: ImageStore,
        settings: ImageSettings,
        platform: Platform,
        threads: WorkerThreads,
        workers: LayerWorkers,
    ) -> None:
        self.resolver = Resolver(DocumentReader(workers, platform), settings.limits, threads)
        self._workers = workers
        self._store = store
        self._settings = settings
        self._threads = threads
        self.policy = Policy(settings.policy, threads)
        self._layers = LayerFetcher(store, settings, threads, workers)
        self._health = HostHealth()
        self._meters = Meters()
        self._builder = FilesystemBuilder(store, settings, self._meters, threads, workers)
        self.unfinished = asyncio.Event()
        """Set when layers of a pull were kept for the next try."""

    async def pull(self, reference: Reference, credentials: Credentials, progress: Progress) -> StoredImage:
        """Pull the image with this name at its registry now, and store it under the name."""
        self.policy.check_name(reference)
        async with self.candidates(reference, credentials, progress) as candidates:
            with step("image.resolve", image=str(reference)):
                target, document = await self.resolver.find(reference, candidates)
                await self.policy.check_content(reference, target)
                image = await self.resolver.resolve(document, candidates)
            names = [reference.at(target.digest)]
            if reference.tag is not None:
                names.append(str(reference))
            return await self.keep(image, tuple(names), candidates, progress)

    @asynccontextmanager
    async def candidates(
        self,
        reference: Reference,
        credentials: Credentials,
        progress: Progress,
    ) -> AsyncIterator[Candidates]:
        """The hosts to ask for a name, in order.  The process that talks to them ends with the block."""
        settings, platform = self._settings, self.resolver.platform
        begin = partial(converse, self._workers, reference, credentials, settings, platform)
        hosts, conversation = await self._threads.run(lambda _: begin())
        try:
            sources = registry_sources(reference, hosts, self._settings, conversation)
            origin = origin_of(reference.host, credentials.fingerprint())
            yield Candidates(sources, reference.host, self._health, progress, origin)
        finally:
            await complete(self._threads.run(lambda _: conversation.close()))

    async def keep(
        self,
        image: ResolvedImage,
        names: tuple[str, ...] | None,
        candidates: Candidates | None,
        progress: Progress,
    ) -> StoredImage:
        """Fetch an image's missing layers, build its filesystems, and name it.

        names: None keeps the present names. candidates: None rebuilds filesystems from stored layers; NotKept
        if a layer is missing.
        """
        layers, has = image.manifest.layers, self._store.has_filesystem
        stack = parts(image.config.diff_ids, [layer.size for layer in layers], self._settings.part_bytes)
        chain_ids = [part.chain_id for part in stack]
        origin = "" if candidates is None else candidates.origin
        meters = self._meters.of_layers(layers, origin)
        progress.plan(meters, [self._meters.of(chain_id, 0, tenant()) for chain_id in chain_ids])
        progress.enter(Stage.FETCHING)
        checkpoint("image-pull.resolved")
        known, before = self._store.stack(image.id), self._store.row(image.id)
        digests = [digest for digest, _ in before.layers] if before is not None else []
        digests += [layer.digest for layer in layers]
        async with self._leasing([*chain_ids, *known], digests, origin):
            # Another images.part_size, or layers that are compressed differently, cut it into other parts.
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
        """Fetch and build; retry if damaged files on this host were found and removed."""
        unfinished, layers = self._store.unfinished, image.manifest.layers
        await self._threads.run(lambda _: unfinished.make_room(sum(map(self._lacking, layers))))
        damaged, relieved = 0, False
        while True:
            progress.enter(Stage.FETCHING)
            try:
                await self._fetch_and_build(image, stack, meters, candidates, progress)
                return
            except Damaged:
                # The damaged layer has been removed; the next round fetches it.
                if (damaged := damaged + 1) > len(layers):
                    raise
            except (DiskFull, OSError) as error:
                # Only once: files kept after the first attempt are this pull's own and fill the disk again.
                if relieved or not is_disk_full(error):
                    raise
                relieved = True
                if not await self._threads.run(lambda _: unfinished.give_back()):
                    raise

    async def _fetch_and_build(
        self,
        image: ResolvedImage,
        stack: Sequence[Part],
        meters: Sequence[Meter],
        candidates: Candidates | None,
        progress: Progress,
    ) -> None:
        """Build each filesystem as soon as its layers are stored, while further layers are fetched."""
        layered = LayeredImage(image.manifest_digest, stack, image.manifest.layers, image.config.diff_ids)
        budget = LayerBudget(image.manifest_digest, self._settings.limits)
        slots = asyncio.Semaphore(self._settings.downloads_per_image)
        async with self._builder.planning(layered) as state:
            parts = stack[len(state.below) :]
            start = min(state.order, default=len(meters))
            _skip(meters[:start])
            for cost in state.below:
                budget.spend(cost)
            async with self._builder.early(layered, parts) as early, task_group() as group:
                wanted = self._wanted(layered, meters, candidates, early)
                coming = {n: group.create_task(self._layer(wanted[n], slots, budget)) for n in state.order}

                async def get(number: int, read: bool) -> ListedLayer:
                    if not read:
                        return await coming[number]
                    return await self._layers.get(wanted[number]._replace(early=None, read=True))

                for part in parts:
                    numbers = range(start, part.end)
                    planned = await self._builder.plan(layered, part, numbers, get, budget.spend, state)
                    group.create_task(self._builder.build(layered, planned, early[part.end - 1]))
                    start = part.end
                progress.enter(Stage.BUILDING)

    def _wanted(
        self,
        image: LayeredImage,
        meters: Sequence[Meter],
        candidates: Candidates | None,
        early: Mapping[int, EagerBuild],
    ) -> list[WantedLayer]:
        """The layers of an image to get."""
        return [
            WantedLayer(layer, diff_id, meters[n], candidates, early.get(n))
            for n, (layer, diff_id) in enumerate(zip(image.layers, image.diff_ids, strict=True))
        ]

    async def fetch(self, image: ResolvedImage, number: int, candidates: Candidates | None) -> None:
        """Fetch a layer of an image, by number, unless a sound copy is stored."""
        layer, diff_id = image.manifest.layers[number], image.config.diff_ids[number]
        origin = "" if candidates is None else candidates.origin
        async with self._leasing([], [layer.digest], origin):
            meter = self._meters.of(layer.digest, layer.size, origin)
            await self._layers.get(WantedLayer(layer, diff_id, meter, candidates, None, True))

    async def _layer(self, wanted: WantedLayer, slots: asyncio.Semaphore, budget: LayerBudget) -> ListedLayer:
        """Return a layer after it is stored."""
        async with slots:
            with step("image.layer", digest=wanted.layer.digest):
                listed = await self._layers.get(wanted)
        if listed.cost is not None:
            budget.spend(listed.cost)
        return listed

    def _lacking(self, layer: Descriptor) -> int:
        """Bytes of a layer still to fetch."""
        return 0 if self._store.files.blob_path(layer.digest).is_file() else layer.size

    def _name(
        self, image: ResolvedImage, chain_id: str, names: tuple[str, ...] | None, built: bool
    ) -> StoredImage:
        """Record the image under its names; all filesystems and layers are stored.

        built: filesystems were built from these layers; the stored row of the image is replaced.
        """
        # If the filesystems were stored already, some of these layers may never have been fetched.
        blob_path, before = self._store.files.blob_path, self._store.row(image.id)
        here = [layer for layer in image.manifest.layers if blob_path(layer.digest).is_file()]
        kept = tuple((layer.digest, layer.size) for layer in here)
        same = before is not None and before.manifest_digest == image.manifest_digest
        if before is not None and same and not built:
            # The build of the image decided which layers to keep.
            kept = before.layers
        row = ImageRow(
            image.id,
            chain_id,
            image.manifest_digest,
            image.manifest_bytes,
            image.config_bytes,
            kept,
            now(),
            facts=pack_image(image.facts),
        )
        if names is None:
            stored = self._store.replace_image(row)
        else:
            unread = before is not None and not before.facts
            stored = self._store.add_image(row, names, built or same or unread)
        checkpoint("image-pull.recorded")
        return stored

    @asynccontextmanager
    async def _leasing(
        self, chain_ids: Sequence[str], digests: Sequence[str], origin: str
    ) -> AsyncIterator[None]:
        """While the body runs, the store removes none of these filesystems and layers."""
        store, unfinished = self._store, False
        try:
            await complete(self._threads.run(lambda _: store.lease(chain_ids, digests)))
            yield
        except BaseException as error:
            # Keep nothing of a faulty image, because a retry would fail too, and nothing if the disk is full.
            unfinished = not isinstance(error, Unpackable | Oversized) and not is_disk_full(error)
            if not unfinished:
                await complete(self._threads.run(lambda _: store.unfinished.drop_parts(digests, origin)))
            raise
        finally:
            await complete(self._threads.run(lambda _: store.end_lease(chain_ids, digests, unfinished)))
            if unfinished:
                self.unfinished.set()


def _skip(meters: Sequence[Meter]) -> None:
    for meter in meters:
        meter.skip()
