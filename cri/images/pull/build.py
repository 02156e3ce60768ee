"""An image's filesystems, each built as soon as its layers are here, while further ones are on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from cri.images.cancel import Cancel
from cri.images.crew import crew
from cri.images.layer.layers import LayerIndex
from cri.images.pull.progress import Meters
from cri.images.registry.manifests import Descriptor
from cri.images.rootfs import tree_cache
from cri.images.rootfs.convert import convert
from cri.images.rootfs.plan import FilesystemPlan, Planner
from cri.images.rootfs.stack import Part
from cri.images.rootfs.tree_cache import TreeCache
from cri.images.settings import ImageSettings
from cri.images.sharing import Gate, Shared
from cri.images.store.store import ImageStore
from daemonkit.checkpoints import checkpoint, declare

declare("image-pull.filesystem-built", "image-pull.filesystem-recorded")


class Image(NamedTuple):
    """What is to be built: the stack and the layers, both lowest first; subject: for messages."""

    subject: str
    stack: Sequence[Part]
    layers: Sequence[Descriptor]


class _Planned(NamedTuple):
    """A filesystem to be built; cost: of its layers (see LayerIndex): entries, weight and plain bytes."""

    part: Part
    layers: tuple[str, ...]
    plan: FilesystemPlan
    cost: tuple[int, int, int]


class Builder:
    """All pulls use one, to share work and bounds."""

    def __init__(self, store: ImageStore, settings: ImageSettings, meters: Meters) -> None:
        self._store = store
        self._settings = settings
        self._meters = meters
        self._filesystems: Shared[None] = Shared()
        self._conversions = Gate(settings.conversions)

    def below(self, image: Image) -> list[TreeCache]:
        """The lowest filesystems that are here, with their trees and layers: these need not be read."""
        found: list[TreeCache] = []
        start = 0
        for part in image.stack:
            layers = image.layers[start : part.end]
            here = self._store.has_filesystem(part.chain_id) and all(map(self._is_here, layers))
            one = tree_cache.load(self._store.files.tree_cache_path(part.chain_id)) if here else None
            # Layers that say they have the same contents may lie.
            if one is None or (one.chain_id, one.layers) != (part.chain_id, _digests(layers)):
                break
            found.append(one)
            start = part.end
        return found

    def build(
        self,
        image: Image,
        below: Sequence[TreeCache],
        layers: Mapping[int, Callable[[Cancel], LayerIndex]],
        fetched: Callable[[], None],
        cancel: Cancel,
    ) -> None:
        """Makes those filesystems that the store lacks; the caller leases all of them, and the layers.

        layers: how to get each one that is not in ``below``, by its number; fetched: called when all are.
        """
        fetchers = ThreadPoolExecutor(self._settings.downloads_per_image, "layer")
        builders = ThreadPoolExecutor(self._settings.conversions, "filesystem")
        # Those that are not here first: they take longest, and what is here waits for nobody.
        order = sorted(layers, key=lambda number: self._is_here(image.layers[number]))
        with crew(cancel, fetchers, builders) as mine:
            futures = {number: mine.submit(fetchers, layers[number], mine.cancel) for number in order}
            planner = Planner(image.subject, self._settings.limits, below)
            for planned in _planned(planner, image, len(below), futures):
                mine.submit(builders, self._make, planned, image, mine.cancel)
            fetched()

    def _make(self, planned: _Planned, image: Image, cancel: Cancel) -> None:
        store, part = self._store, planned.part

        def make() -> None:
            if not store.has_filesystem(part.chain_id):
                self._convert(planned, image, cancel)
            files = store.files
            with files.work_file(part.chain_id.partition(":")[2]) as work:
                work.write_bytes(_packed_tree(planned))
                work.rename(files.tree_cache_path(part.chain_id))

        self._filesystems.run(part.chain_id, make, cancel)

    def _convert(self, planned: _Planned, image: Image, cancel: Cancel) -> None:
        store, part = self._store, planned.part
        blobs = [store.files.blob_path(layer.digest) for layer in image.layers]
        meter = self._meters.of(part.chain_id, 0)
        with (
            self._conversions.passing(cancel),
            store.files.work_file(part.chain_id.partition(":")[2]) as work,
        ):
            built = convert(blobs, planned.plan, work, self._settings, cancel, meter)
            checkpoint("image-pull.filesystem-built")
            store.add_filesystem(work, part.chain_id, part.below, built.accounts, built.digest)
            checkpoint("image-pull.filesystem-recorded")

    def _is_here(self, layer: Descriptor) -> bool:
        path = self._store.files.blob_path(layer.digest)
        return path.is_file() and path.stat().st_size == layer.size


def _planned(
    planner: Planner, image: Image, skip: int, futures: dict[int, Future[LayerIndex]]
) -> Iterator[_Planned]:
    start = image.stack[skip - 1].end if skip else 0
    for part in image.stack[skip:]:
        entries = weight = plain = 0
        for number in range(start, part.end):
            # What a layer brings is in the tree then, and needed nowhere else.
            index = futures.pop(number).result()
            entries += len(index.entries)
            weight += index.weight
            plain += index.plain_bytes
            planner.apply(index.entries)
        layers = _digests(image.layers[start : part.end])
        start = part.end
        yield _Planned(part, layers, planner.plan(), (entries, weight, plain))


def _packed_tree(planned: _Planned) -> bytes:
    plan = planned.plan
    spent = (*plan.spent, *planned.cost)
    return tree_cache.pack(
        TreeCache(planned.part.chain_id, planned.layers, plan.serial, spent, plan.root, plan.directories)
    )


def _digests(layers: Sequence[Descriptor]) -> tuple[str, ...]:
    return tuple(layer.digest for layer in layers)
