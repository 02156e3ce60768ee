"""An image's filesystems: what the store has of them, and how the others are made of their layers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from cri.images.concurrency import CancelToken, SingleFlight, WorkerThreads
from cri.images.layer import losses
from cri.images.layer.layers import Cost, LayerIndex
from cri.images.pull.kept import check_kept
from cri.images.pull.progress import Meters
from cri.images.registry.manifests import Descriptor
from cri.images.rootfs import tree_cache
from cri.images.rootfs.convert import convert
from cri.images.rootfs.plan import FilesystemPlan, Planner
from cri.images.rootfs.stack import Part
from cri.images.rootfs.tree_cache import TreeCache
from cri.images.settings import ImageSettings
from cri.images.store.files import FS_TYPE
from cri.images.store.store import ImageStore
from daemonkit.checkpoints import checkpoint

log = logging.getLogger(__name__)


class LayeredImage(NamedTuple):
    """What is to be built: the stack and the layers, both lowest first; subject: for messages."""

    subject: str
    stack: Sequence[Part]
    layers: Sequence[Descriptor]


class Planned(NamedTuple):
    """A filesystem to be built; cost: of its layers."""

    part: Part
    layers: tuple[str, ...]
    plan: FilesystemPlan
    cost: Cost

    def lower_layers(self) -> list[int]:
        """The numbers of layers of filesystems below that have files in this one too."""
        first = self.part.end - len(self.layers)
        accounts = (node.content for node in self.plan.accounts.values() if node is not None)
        used = {*self.plan.files, *(content.layer for content in accounts if content is not None)}
        return sorted(number for number in used if number < first)


class BuildState(NamedTuple):
    """What the store has when a build begins.

    below: the tree caches of the lowest filesystems, whose layers need not be read; order: the numbers of all
    other layers, in the order to read them; planner: goes on from ``below``.
    """

    below: Sequence[TreeCache]
    order: Sequence[int]
    planner: Planner


class FilesystemBuilder:
    """Builds what the store lacks; all pulls use one, to share work and bounds."""

    def __init__(
        self, store: ImageStore, settings: ImageSettings, meters: Meters, threads: WorkerThreads
    ) -> None:
        self._store = store
        self._settings = settings
        self._meters = meters
        self._threads = threads
        self._filesystems: SingleFlight[None] = SingleFlight()
        self._conversions = asyncio.Semaphore(settings.conversions)

    async def begin(self, image: LayeredImage) -> BuildState:
        """Look at what is here; the caller leases all filesystems and layers of the image."""
        return await self._threads.run(lambda _: self._begin(image))

    async def plan(
        self, image: LayeredImage, part: Part, indexes: Iterable[Awaitable[LayerIndex]], planner: Planner
    ) -> Planned:
        """Apply the layers of the next part as they come, and plan its filesystem."""
        cost, count = Cost(), 0
        for coming in indexes:
            index = await coming
            count += 1
            cost = cost.plus(index.cost)
            await self._threads.run(partial(_apply, planner, index))
            # What a layer brings is in the tree now, and needed nowhere else.
            del index, coming
        plan = await self._threads.run(lambda _: planner.plan())
        layers = _digests(image.layers[part.end - count : part.end])
        return Planned(part, layers, plan, cost)

    async def build(self, image: LayeredImage, planned: Planned) -> None:
        """Make a filesystem, unless another pull does or has; and its tree cache."""
        await self._filesystems.run(planned.part.chain_id, lambda: self._build(image, planned))

    async def _build(self, image: LayeredImage, planned: Planned) -> None:
        chain_id = planned.part.chain_id
        if not self._store.has_filesystem(chain_id):
            meter = self._meters.of(chain_id, 0)
            async with self._conversions:
                with meter.running(planned.plan.file_bytes):
                    await self._threads.run(partial(self._convert, image, planned, meter.add))
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
        return BuildState(below, order, Planner(image.subject, self._settings.limits, below))

    def _convert(
        self, image: LayeredImage, planned: Planned, moved: Callable[[int], None], token: CancelToken
    ) -> None:
        store, part = self._store, planned.part
        blobs = [store.files.blob_path(layer.digest) for layer in image.layers]
        # The others have been read, and verified, for this very pull.
        for number in planned.lower_layers():
            check_kept(image.layers[number].digest, blobs[number], token)
        with store.files.work_file(part.chain_id.partition(":")[2]) as work:
            built = convert(blobs, planned.plan, work, self._settings, token, moved)
            checkpoint("image-pull.filesystem-built")
            lost = planned.plan.lost
            store.add_filesystem(work, part.chain_id, part.below, built.accounts, built.digest, lost)
            checkpoint("image-pull.filesystem-recorded")
            if lost:
                log.warning("image %s: %s cannot hold %s", image.subject, FS_TYPE, losses.shown(lost))

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


def _apply(planner: Planner, index: LayerIndex, _: CancelToken) -> None:
    planner.apply(index.entries)


def _digests(layers: Sequence[Descriptor]) -> tuple[str, ...]:
    return tuple(layer.digest for layer in layers)
