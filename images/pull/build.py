"""Builds an image's missing filesystems from its layers."""

from __future__ import annotations

import logging
import shutil
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
    Set,
)
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Broken
from daemonkit.observe.steps import step
from daemonkit.shares import FairSlots, Shares
from daemonkit.tasks import complete
from images.bounds.cancel import CancelToken
from images.concurrency import SingleFlight, WorkerThreads, tenant
from images.image_settings import ImageSettings
from images.layer import losses
from images.layer.layers import Cost
from images.pull.eager import SLOTS, EagerBuild
from images.pull.progress import Meters
from images.pull.stored_layers import ListedLayer, check_kept
from images.registry.manifests import Descriptor
from images.rootfs.stack import Part
from images.store.db import FilesystemRow
from images.store.image_files import FS_TYPE
from images.store.store import ImageStore
from images.worker.layer_workers import BuiltFilesystem, account_files, convert, convert_rest
from images.worker.planning import EMPTY, ImagePlanning, StoredPlan
from images.worker.workers import LayerWorkers

log = logging.getLogger(__name__)


class LayeredImage(NamedTuple):
    """An image to build: stack and layers, lowest first; subject: the name for messages."""

    subject: str
    stack: Sequence[Part]
    layers: Sequence[Descriptor]
    diff_ids: Sequence[str]


class Planned(NamedTuple):
    """A filesystem to build.

    layers: digests; verified: numbers of layers with just verified bytes.
    """

    part: Part
    layers: tuple[str, ...]
    plan: StoredPlan
    verified: frozenset[int]

    def accounts(self) -> set[int]:
        """Numbers of the layers with account files for this filesystem."""
        return {layer for layer in self.plan.accounts.values() if layer is not None and layer != EMPTY}

    def read(self) -> set[int]:
        """Numbers of all layers to read for this build.

        Layers that add no file to the result count too: reading finds their damage.
        """
        own = range(self.part.end - len(self.layers), self.part.end)
        return self.accounts().union(self.plan.order, own)


class BuildState(NamedTuple):
    """The store's contents when a build begins.

    below: costs of the lowest filesystems, whose layers need no reading; order: numbers of all other layers,
    in reading order; planning: continues from ``below``; contents: content names of the stack's filesystems,
    see content_id().
    """

    below: Sequence[Cost]
    order: Sequence[int]
    planning: ImagePlanning
    contents: set[str]


class FilesystemBuilder:
    """Builds filesystems. All pulls use the same builder, to share work and bounds."""

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
        # Twice the bound of one registry's images: a tenant alone gets half of a pool.
        self._conversions = FairSlots(2 * settings.conversions)
        self._slots = Shares(2 * SLOTS)

    @asynccontextmanager
    async def planning(self, image: LayeredImage) -> AsyncIterator[BuildState]:
        """Read the state of the store; the caller leases all filesystems and layers of the image."""
        planning = ImagePlanning(self._workers, image.subject, self._store.files.ingest)
        try:
            yield await self._threads.run(partial(self._begin, image, planning))
        finally:
            await complete(self._threads.run(lambda _: planning.close()))

    async def plan(
        self,
        image: LayeredImage,
        part: Part,
        numbers: Sequence[int],
        get: Callable[[int, bool], Awaitable[ListedLayer]],
        spend: Callable[[Cost], None],
        state: BuildState,
    ) -> Planned:
        """Apply the layers of the next part as they arrive, and plan the filesystem.

        numbers: of the layers; get(number, read): waits for a layer; read: read the layer itself even if its
        list is stored; spend: is called with each cost unknown until now.
        """
        right: set[int] = set()
        for number in numbers:
            listed = await get(number, False)
            is_spent = listed.cost is not None
            cost = await self._apply(image, number, state)
            if cost is None:
                listed = await get(number, True)
                cost = await self._apply(image, number, state)
            if cost is None:
                raise Broken("plan filesystems", image.layers[number].digest, "its new list cannot be read")
            if not is_spent:
                spend(cost)
            if listed.verified:
                right.add(number)
        layers = tuple(image.layers[number].digest for number in numbers)
        diff_ids = image.diff_ids[: part.end]
        make = partial(state.planning.plan, part.chain_id, layers, diff_ids, state.contents)
        plan = await self._threads.run(make)
        state.contents.add(plan.content.value)
        if part is image.stack[-1]:
            plan = await self._threads.run(lambda _: state.planning.finished(plan))
        return Planned(part, layers, plan, frozenset(right))

    async def _apply(self, image: LayeredImage, number: int, state: BuildState) -> Cost | None:
        """Apply the next layer from its list; returns the cost, or None if the list is unusable."""
        digest, diff_id = image.layers[number].digest, image.diff_ids[number]
        listed = self._store.files.layer_cache_path(digest)
        return await self._threads.run(partial(state.planning.apply, listed, digest, diff_id))

    @asynccontextmanager
    async def early(
        self, image: LayeredImage, parts: Sequence[Part]
    ) -> AsyncIterator[Mapping[int, EagerBuild]]:
        """Places for the filesystems of parts, by the numbers of their topmost layers."""
        places, files, settings, workers = {}, self._store.files, self._settings, self._workers
        for part in parts:
            # An image may have no layer at all.
            size = sum(layer.size for layer in image.layers[part.end - 1 : part.end])
            places[part.end - 1] = EagerBuild(files, part.chain_id, size, settings, self._slots, workers)

        def close(_: CancelToken) -> None:
            for place in places.values():
                place.close()

        try:
            yield places
        finally:
            await complete(self._threads.run(close))

    async def build(self, image: LayeredImage, planned: Planned, early: EagerBuild) -> None:
        """Build a filesystem and its tree cache, unless stored. Pulls of one tenant share the build."""

        def work() -> Coroutine[Any, Any, None]:
            return self._build(image, planned, early)

        with closing(planned.plan):
            await self._filesystems.run((planned.plan.content.value, tenant()), work)
            if not self._store.has_filesystem(planned.part.chain_id):
                # Another caller made the filesystem, over other lower layers.
                await self._filesystems.run((planned.part.chain_id, tenant()), work)
        await self._threads.run(lambda _: early.close())

    async def _build(self, image: LayeredImage, planned: Planned, early: EagerBuild) -> None:
        chain_id, plan = planned.part.chain_id, planned.plan
        if not self._store.has_filesystem(chain_id):
            meter = self._meters.of(chain_id, 0, tenant())
            if await self._threads.run(partial(self._share, image, planned)):
                meter.skip()
            else:
                async with self._conversions.slot(tenant()):
                    # Before the meter runs: hashing large layers must not count as a standstill.
                    blobs = await self._threads.run(partial(self._checked, image, planned, planned.read()))
                    with meter.running(plan.file_bytes):
                        convert = partial(self._convert, image, planned, early, blobs, meter.add)
                        with step("image.build"):
                            await self._threads.run(convert)
        await self._threads.run(lambda _: self._keep_tree(planned))

    def _begin(self, image: LayeredImage, planning: ImagePlanning, token: CancelToken) -> BuildState:
        caches: list[tuple[str, tuple[str, ...]]] = []
        start = 0
        for part in image.stack:
            layers = image.layers[start : part.end]
            if not self._store.has_filesystem(part.chain_id) or not all(map(self._is_here, layers)):
                break
            caches.append((part.chain_id, tuple(layer.digest for layer in layers)))
            start = part.end
        paths = [self._store.files.tree_cache_path(chain_id) for chain_id, _ in caches]
        below = planning.begin(paths, caches, token)
        start = image.stack[len(below) - 1].end if below else 0
        # Missing layers first, because they take longest; stored layers need no download.
        order = sorted(
            range(start, len(image.layers)), key=lambda number: self._is_here(image.layers[number])
        )
        contents = self._store.contents([part.chain_id for part in image.stack[: len(below)]])
        return BuildState(below, order, planning, contents)

    def _share(self, image: LayeredImage, planned: Planned, token: CancelToken) -> bool:
        """Link an existing filesystem of the same content; returns False if the store has none."""
        chain_id = planned.part.chain_id
        with self._store.files.work_file(chain_id.partition(":")[2]) as work:
            digest = self._store.link_filesystem(planned.plan.content.value, chain_id, work)
            if digest is None:
                return False
            blobs = self._checked(image, planned, planned.accounts(), token)
            accounts = account_files(blobs, planned.plan, chain_id, self._workers, token)
            self._add(image, work, planned, BuiltFilesystem(digest, accounts))
        # The linked file may have been found damaged in between.
        return self._store.has_filesystem(chain_id)

    def _convert(
        self,
        image: LayeredImage,
        planned: Planned,
        early: EagerBuild,
        blobs: Mapping[int, Path],
        moved: Callable[[int], None],
        token: CancelToken,
    ) -> None:
        plan, part, begun, workers = planned.plan, planned.part, early.begun, self._workers
        if begun is not None and begun.fits(plan.content):
            self._add(image, begun.out, planned, convert_rest(begun, blobs, plan, workers, token, moved))
            return
        # Close first: the disk may lack room for both files.
        early.close()
        with self._store.files.work_file(part.chain_id.partition(":")[2]) as work:
            self._add(image, work, planned, convert(blobs, plan, work, self._settings, workers, token, moved))

    def _checked(
        self, image: LayeredImage, planned: Planned, read: Set[int], token: CancelToken
    ) -> dict[int, Path]:
        """Paths of the layers to read, after verifying them."""
        path = self._store.files.blob_path
        blobs = {number: path(image.layers[number].digest) for number in sorted(read)}
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
        self._store.add_filesystem(work, row, built.accounts, planned.plan.content.value)
        checkpoint("image-pull.filesystem-recorded")
        if row.lost:
            log.warning("image %s: %s cannot hold %s", image.subject, FS_TYPE, losses.shown_losses(row.lost))

    def _keep_tree(self, planned: Planned) -> None:
        chain_id, tree = planned.part.chain_id, planned.plan.tree
        with self._store.files.work_file(chain_id.partition(":")[2]) as work:
            tree.seek(0)
            with work.open("xb") as file:
                shutil.copyfileobj(tree, file)
            work.rename(self._store.files.tree_cache_path(chain_id))

    def _is_here(self, layer: Descriptor) -> bool:
        path = self._store.files.blob_path(layer.digest)
        return path.is_file() and path.stat().st_size == layer.size
