"""An image's filesystems, each built as soon as its layers are here, while further ones are on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cri.images.cancel import Cancel
from cri.images.convert import convert
from cri.images.crew import crew
from cri.images.layers import LayerIndex
from cri.images.plan import Plan, Planner
from cri.images.progress import Meters
from cri.images.settings import ImageSettings
from cri.images.sharing import Gate, Shared
from cri.images.stack import Part
from cri.images.store import ImageStore
from daemonkit.checkpoints import checkpoint, declare

declare("image-pull.filesystem-built", "image-pull.filesystem-recorded")


class Builder:
    """All pulls use one, to share work and bounds."""

    def __init__(self, store: ImageStore, settings: ImageSettings, meters: Meters) -> None:
        self._store = store
        self._settings = settings
        self._meters = meters
        self._filesystems: Shared[None] = Shared()
        self._conversions = Gate(settings.conversions)

    def build(
        self,
        subject: str,
        parts: Sequence[Part],
        layers: Mapping[int, Callable[[Cancel], LayerIndex]],
        blobs: Sequence[Path],
        fetched: Callable[[], None],
        cancel: Cancel,
    ) -> None:
        """Makes those parts that the store lacks; the caller leases all of them, and the blobs.

        layers: how to get each one by its number, the most urgent first; fetched: called once all are here.
        """
        fetchers = ThreadPoolExecutor(self._settings.downloads_per_image, "layer")
        builders = ThreadPoolExecutor(self._settings.conversions, "filesystem")
        with crew(cancel, fetchers, builders) as mine:
            futures = {number: mine.submit(fetchers, get, mine.cancel) for number, get in layers.items()}
            planner = Planner(subject, self._settings.limits)
            for part, plan in self._plans(planner, parts, futures):
                mine.submit(builders, self._make, part, plan, blobs, mine.cancel)
            fetched()

    def _plans(
        self, planner: Planner, parts: Sequence[Part], futures: dict[int, Future[LayerIndex]]
    ) -> Iterator[tuple[Part, Plan]]:
        start = 0
        for part in parts:
            for number in range(start, part.end):
                # What a layer brings is in the tree then, and needed nowhere else.
                planner.apply(futures.pop(number).result().entries)
            start = part.end
            if self._store.has_filesystem(part.chain_id):
                planner.skip()
            else:
                yield part, planner.plan()

    def _make(self, part: Part, plan: Plan, blobs: Sequence[Path], cancel: Cancel) -> None:
        store = self._store

        def make() -> None:
            if store.has_filesystem(part.chain_id):
                return
            meter = self._meters.of(part.chain_id, 0)
            stem = part.chain_id.partition(":")[2]
            with self._conversions.passing(cancel), store.files.work_file(stem) as work:
                built = convert(blobs, plan, work, self._settings, cancel, meter)
                checkpoint("image-pull.filesystem-built")
                store.add_filesystem(work, part.chain_id, part.below, built.accounts, built.digest)
                checkpoint("image-pull.filesystem-recorded")

        self._filesystems.run(part.chain_id, make, cancel)
