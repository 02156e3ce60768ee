"""Builds the filesystems of an image that the store lacks, from its layers."""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cri.images.bounds.cancel import CancelToken
from cri.images.concurrency import SingleFlight, WorkerThreads, tenant
from cri.images.layer import losses
from cri.images.layer.layers import Cost, LayerIndex
from cri.images.pull.early import SLOTS, EarlyBuild
from cri.images.pull.kept import check_kept
from cri.images.pull.progress import Meters
from cri.images.registry.manifests import Descriptor
from cri.images.rootfs import tree_cache
from cri.images.rootfs.content import ContentId, content_id
from cri.images.rootfs.plan import FilesystemPlan, Planner
from cri.images.rootfs.stack import Part
from cri.images.rootfs.tree_cache import TreeCache
from cri.images.settings import ImageSettings
from cri.images.store.db import FilesystemRow
from cri.images.store.files import FS_TYPE
from cri.images.store.store import ImageStore
from cri.images.worker.layers import BuiltFilesystem, account_files, convert, convert_rest
from cri.images.worker.workers import LayerWorkers
from daemonkit.checkpoints import checkpoint
from daemonkit.observe.steps import step
from daemonkit.shares import FairSlots, Shares
from daemonkit.tasks import complete

log = logging.getLogger(__name__)


class LayeredImage(NamedTuple):
    """What is to be built: the stack and the layers, all lowest first; subject: for messages."""

    subject: str
    stack: Sequence[Part]
    layers: Sequence[Descriptor]
    diff_ids: Sequence[str]


class Planned(NamedTuple):
    """A filesystem to be built.

    layers: their digests; content: see ContentId; cost: of its layers; verified: those of them whose bytes
    have just been read, by their numbers.
    """

    part: Part
    layers: tuple[str, ...]
    plan: FilesystemPlan
    content: ContentId
    cost: Cost
    verified: frozenset[int]

    def accounts(self) -> set[int]:
        """The numbers of the layers that have its account files."""
        contents = (node.content for node in self.plan.accounts.values() if node is not None)
        return {content.layer for content in contents if content is not None}

    def read(self) -> set[int]:
        """The numbers of the layers that are read to build it.

        Also those of which nothing is left in the end: they are found damaged then, if they are.
        """
        own = range(self.part.end - len(self.layers), self.part.end)
        return self.accounts().union(self.plan.files, own)


class BuildState(NamedTuple):
    """What the store has when a build begins.

    below: the tree caches of the lowest filesystems, whose layers need not be read; order: the numbers of all
    other layers, in the order to read them; planner: goes on from ``below``; contents: names of what is in
    the stack so far, see content_id().
    """

    below: Sequence[TreeCache]
    order: Sequence[int]
    planner: Planner
    contents: set[str]


class FilesystemBuilder:
    """Builds filesystems; all pulls use one builder, to share work and bounds."""

    def __init__(
        self,
        store: ImageStore,
        settings: ImageSettings,
        meters: Meters,
        threads: WorkerThreads,
        workers: LayerWorkers,
    ) -> None:
        self._store = store
        self._settings = settings
        self._meters = meters
        self._threads = threads
        self._workers = workers
        self._filesystems: SingleFlight[None] = SingleFlight()
        # Twice what one registry's images may have: half of a pool is a tenant's, if it is alone.
        self._conversions = FairSlots(2 * settings.conversions)
        self._slots = Shares(2 * SLOTS)

    async def begin(self, image: LayeredImage) -> BuildState:
        """Find out what the store has; the caller leases all filesystems and layers of the image."""
        return await self._threads.run(lambda _: self._begin(image))

    async def plan(
        self,
        image: LayeredImage,
        part: Part,
        indexes: Iterable[Awaitable[LayerIndex]],
        planner: Planner,
        contents: set[str],
    ) -> Planned:
        """Apply the layers of the next part as they come, and plan its filesystem; contents: grows by it."""
        cost, count = Cost(), 0
        verified: list[bool] = []
        for coming in indexes:
            index = await coming
            count += 1
            verified.append(index.verified)
            cost = cost.plus(index.cost)
            await self._threads.run(partial(_apply, planner, index))
            # What a layer brings is in the tree now, and needed nowhere else.
            del index, coming
        plan = await self._threads.run(planner.plan)
        name = partial(content_id, plan, image.diff_ids, contents)
        content = await self._threads.run(name)
        contents.add(content.value)
        start = part.end - count
        layers = _digests(image.layers[start : part.end])
        right = frozenset(number for number, one in enumerate(verified, start) if one)
        return Planned(part, layers, plan, content, cost, right)

    @asynccontextmanager
    async def early(self, parts: Sequence[Part]) -> AsyncIterator[Mapping[int, EarlyBuild]]:
        """Places for the filesystems of parts, by the numbers of their topmost layers."""
        files, settings, workers = self._store.files, self._settings, self._workers
        places = {
            part.end - 1: EarlyBuild(files, part.chain_id, settings, self._slots, workers) for part in parts
        }

        def close(_: CancelToken) -> None:
            for place in places.values():
                place.close()

        try:
            yield places
        finally:
            await complete(self._threads.run(close))

    async def build(self, image: LayeredImage, planned: Planned, early: EarlyBuild) -> None:
        """Make a filesystem and its tree cache, unless another pull of the same tenant does, or one has."""

        def work() -> Coroutine[Any, Any, None]:
            return self._build(image, planned, early)

        await self._filesystems.run((planned.content.value, tenant()), work)
        if not self._store.has_filesystem(planned.part.chain_id):
            # It was made to lie over other ones.
            await self._filesystems.run((planned.part.chain_id, tenant()), work)
        await self._threads.run(lambda _: early.close())

    async def _build(self, image: LayeredImage, planned: Planned, early: EarlyBuild) -> None:
        chain_id, plan = planned.part.chain_id, planned.plan
        if not self._store.has_filesystem(chain_id):
            meter = self._meters.of(chain_id, 0, tenant())
            if await self._threads.run(partial(self._share, image, planned)):
                meter.skip()
            else:
                async with self._conversions.slot(tenant()):
                    # Before bytes should be moving: hashing large layers is no standstill.
                    blobs = await self._threads.run(partial(self._checked, image, planned, planned.read()))
                    with meter.running(plan.file_bytes):
                        convert = partial(self._convert, image, planned, early, blobs, meter.add)
                        with step("image.build"):
                            await self._threads.run(convert)
        await self._threads.run(lambda _: self._keep_tree(planned))

    def _begin(self, image: LayeredImage) -> BuildState:
        below: list[TreeCache] = []
        start = 0
        for part in image.stack:
            layers = image.layers[start : part.end]
            here = self._store.has_filesystem(part.chain_id) and all(map(self._is_here, layers))
            cache = tree_cache.load(self._store.files.tree_cache_path(part.chain_id)) if here else None
            # Layers that say they have the same contents may lie.
            if cache is None or (cache.chain_id, cache.layers) != (part.chain_id, _digests(layers)):
                break
            below.append(cache)
            start = part.end
        # Those that are not here first: they take longest, and what is here waits for nobody.
        order = sorted(
            range(start, len(image.layers)), key=lambda number: self._is_here(image.layers[number])
        )
        contents = self._store.contents([cache.chain_id for cache in below])
        return BuildState(below, order, Planner(image.subject, self._settings.limits, below), contents)

    def _share(self, image: LayeredImage, planned: Planned, token: CancelToken) -> bool:
        """Take a filesystem of the same content, whatever lies below it; returns whether there is one."""
        chain_id = planned.part.chain_id
        with self._store.files.work_file(chain_id.partition(":")[2]) as work:
            digest = self._store.link_filesystem(planned.content.value, chain_id, work)
            if digest is None:
                return False
            blobs = self._checked(image, planned, planned.accounts(), token)
            accounts = account_files(blobs, planned.plan, chain_id, self._workers, token)
            self._add(image, work, planned, BuiltFilesystem(digest, accounts))
        # Its file may have been found damaged in the meantime.
        return self._store.has_filesystem(chain_id)

    def _convert(
        self,
        image: LayeredImage,
        planned: Planned,
        early: EarlyBuild,
        blobs: Sequence[Path],
        moved: Callable[[int], None],
        token: CancelToken,
    ) -> None:
        plan, part, begun, workers = planned.plan, planned.part, early.begun, self._workers
        if begun is not None and begun.fits(planned.content):
            self._add(image, begun.out, planned, convert_rest(begun, blobs, plan, workers, token, moved))
            return
        # The disk need not have room for both.
        early.close()
        with self._store.files.work_file(part.chain_id.partition(":")[2]) as work:
            self._add(image, work, planned, convert(blobs, plan, work, self._settings, workers, token, moved))

    def _checked(
        self, image: LayeredImage, planned: Planned, read: Set[int], token: CancelToken
    ) -> list[Path]:
        """The paths of all layers, after checking those that are about to be read."""
        blobs = [self._store.files.blob_path(layer.digest) for layer in image.layers]
        for number in sorted(read - planned.verified):
            check_kept(image.layers[number].digest, blobs[number], token)
        return blobs

    def _add(self, image: LayeredImage, work: Path, planned: Planned, built: BuiltFilesystem) -> None:
        checkpoint("image-pull.filesystem-built")
        row = FilesystemRow(
            planned.part.chain_id,
            FS_TYPE,
            work.stat().st_size,
            built.digest,
            planned.part.below,
            lost=planned.plan.lost,
        )
        self._store.add_filesystem(work, row, built.accounts, planned.content.value)
        checkpoint("image-pull.filesystem-recorded")
        if row.lost:
            log.warning("image %s: %s cannot hold %s", image.subject, FS_TYPE, losses.shown(row.lost))

    def _keep_tree(self, planned: Planned) -> None:
        chain_id, plan = planned.part.chain_id, planned.plan
        spent = (*plan.spent, *planned.cost)
        cache = TreeCache(chain_id, planned.layers, plan.serial, spent, plan.root, plan.directories)
        with self._store.files.work_file(chain_id.partition(":")[2]) as work:
            work.write_bytes(tree_cache.pack(cache))
            work.rename(self._store.files.tree_cache_path(chain_id))

    def _is_here(self, layer: Descriptor) -> bool:
        path = self._store.files.blob_path(layer.digest)
        return path.is_file() and path.stat().st_size == layer.size


def _apply(planner: Planner, index: LayerIndex, token: CancelToken) -> None:
    planner.apply(token.passing(index.entries))


def _digests(layers: Sequence[Descriptor]) -> tuple[str, ...]:
    return tuple(layer.digest for layer in layers)
