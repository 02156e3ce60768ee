"""Gets layers into the store: reads stored layers, downloads the others.

Callers of the same origin share a download. Callers of different origins share only verified layers: a pull
neither waits for another pull's registry nor fails with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

from daemonkit.checkpoints import checkpoint
from daemonkit.tasks import join, race
from images.bounds.cancel import CancelToken
from images.concurrency import SingleFlight, WorkerThreads
from images.image_errors import NotKept
from images.image_settings import ImageSettings
from images.pull.candidates import Candidates
from images.pull.eager import EagerBuild
from images.pull.failures import is_resumable
from images.pull.fetch import download_layer, read_first
from images.pull.progress import Meter
from images.pull.stored_layers import ListedLayer, listing, read_kept
from images.registry.manifests import Descriptor
from images.registry.sources import ImageSource
from images.store.store import ImageStore
from images.worker.workers import LayerWorkers


class WantedLayer(NamedTuple):
    """A layer to get.

    early: the build of the filesystem above this layer; receives the layer's files while they are read. read:
    read the layer even if its list is stored.
    """

    layer: Descriptor
    diff_id: str
    meter: Meter
    candidates: Candidates | None
    early: EagerBuild | None = None
    read: bool = False


class LayerFetcher:
    """Gets layers for all pulls."""

    def __init__(
        self, store: ImageStore, settings: ImageSettings, threads: WorkerThreads, workers: LayerWorkers
    ) -> None:
        self._store = store
        self._settings = settings
        self._threads = threads
        self._workers = workers
        self._running: SingleFlight[ListedLayer] = SingleFlight()
        # The layers under way; an arrival is done once the first download has been verified.
        self._arrivals: WeakValueDictionary[Hashable, asyncio.Future[ListedLayer]] = WeakValueDictionary()
        # A semaphore for each host and origin: a stalled host delays only its own images.
        self._downloads: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()

    async def get(self, wanted: WantedLayer) -> ListedLayer:
        """Return a layer after some source has verified and stored it."""
        # All claims of a caller about the layer: a caller with wrong claims shares the work with no other.
        layer = (wanted.layer.digest, wanted.layer.size, wanted.diff_id, wanted.read)
        origin = None if wanted.candidates is None else wanted.candidates.origin
        arrival = self._arrivals.get(layer)
        if arrival is None:
            arrival = self._arrivals[layer] = asyncio.get_running_loop().create_future()
        fetching = self._running.run((layer, origin), lambda: self._fetch(wanted))
        listed = await race(fetching, join(arrival))
        if not arrival.done():
            self._arrivals.pop(layer, None)
            arrival.set_result(listed)
        wanted.meter.skip()
        return listed

    async def _fetch(self, wanted: WantedLayer) -> ListedLayer:
        kept = await self._threads.run(partial(self._read_kept, wanted))
        if kept is not None:
            return kept
        candidates, digest = wanted.candidates, wanted.layer.digest
        if candidates is None:
            raise NotKept("rebuild", digest, f"no sound copy of its layer {digest} is on this host")
        most = 2 * self._settings.downloads_per_image
        host = (candidates.first.name, candidates.origin)
        async with self._downloads.setdefault(host, asyncio.Semaphore(most)):
            with wanted.meter.running():
                download = partial(self._download, wanted, candidates.origin)
                return await read_first(self._threads, candidates, download)

    def _read_kept(self, wanted: WantedLayer, token: CancelToken) -> ListedLayer | None:
        """A kept layer; None: the store does not have the layer."""
        layer, diff_id, read = wanted.layer, wanted.diff_id, wanted.read
        kept = read_kept(layer, diff_id, self._store.files, self._workers, read, token)
        if kept is not None:
            wanted.meter.done()
        return kept

    def _download(
        self, wanted: WantedLayer, origin: str, source: ImageSource, token: CancelToken
    ) -> ListedLayer:
        """Download a layer into the store from the given source."""
        layer, diff_id, early = wanted.layer, wanted.diff_id, wanted.early
        files, limits = self._store.files, self._settings.limits
        reading = nullcontext if early is None else early.reading
        with files.download_file(layer.digest, origin) as work, listing(layer, files) as new:
            try:
                meter = wanted.meter
                cost = download_layer(
                    layer, diff_id, work, new.file, limits, meter, source, self._workers, token, reading
                )
            except BaseException as error:
                if is_resumable(error):
                    files.keep_partial(work, layer.digest, origin)
                raise
            checkpoint("image-pull.layer-fetched")
            files.put(work, files.blob_path(layer.digest))
            checkpoint("image-pull.layer-named")
            new.keep()
        return ListedLayer(cost, True)
