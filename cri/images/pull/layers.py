"""Gets layers into the store: reads those that are kept, downloads the others, each once for all callers."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

from cri.images.bounds.cancel import CancelToken
from cri.images.concurrency import SingleFlight, WorkerThreads
from cri.images.errors import NotKept
from cri.images.layer.layers import LayerIndex
from cri.images.pull.candidates import Candidates
from cri.images.pull.early import EarlyBuild
from cri.images.pull.failures import is_resumable
from cri.images.pull.fetch import download_layer, read_first
from cri.images.pull.kept import keep_list, read_kept
from cri.images.pull.progress import Meter
from cri.images.registry.manifests import Descriptor
from cri.images.registry.sources import ImageSource
from cri.images.settings import ImageSettings
from cri.images.store.store import ImageStore
from cri.images.worker.workers import LayerWorkers
from daemonkit.checkpoints import checkpoint


class WantedLayer(NamedTuple):
    """A layer to get.

    early: the build of the filesystem whose topmost layer this is, which gets its files while they are read.
    read: read the layer even if its index is stored.
    """

    layer: Descriptor
    diff_id: str
    meter: Meter
    candidates: Candidates | None
    early: EarlyBuild | None = None
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
        self._running: SingleFlight[LayerIndex] = SingleFlight()
        # A semaphore for each host, so that a host that stalls delays only its own images.
        self._downloads: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def get(self, wanted: WantedLayer) -> LayerIndex:
        """A layer's index, once the layer is in the store; concurrent callers share the work."""
        # A caller that may fetch must not share the failure of one that may not.
        key = (wanted.layer.digest, wanted.diff_id, wanted.candidates is not None, wanted.read)
        return await self._running.run(key, lambda: self._fetch(wanted))

    async def _fetch(self, wanted: WantedLayer) -> LayerIndex:
        kept = await self._threads.run(partial(self._read_kept, wanted))
        if kept is not None:
            return kept
        candidates, digest = wanted.candidates, wanted.layer.digest
        if candidates is None:
            raise NotKept("rebuild", digest, f"no sound copy of its layer {digest} is on this host")
        most = 2 * self._settings.downloads_per_image
        async with self._downloads.setdefault(candidates.first.name, asyncio.Semaphore(most)):
            with wanted.meter.running():
                return await read_first(self._threads, candidates, partial(self._download, wanted))

    def _read_kept(self, wanted: WantedLayer, token: CancelToken) -> LayerIndex | None:
        """The index of a kept layer; None: the store does not have the layer."""
        layer, diff_id, read = wanted.layer, wanted.diff_id, wanted.read
        index = read_kept(layer, diff_id, self._store.files, self._workers, read, token)
        if index is not None:
            wanted.meter.done()
        return index

    def _download(self, wanted: WantedLayer, source: ImageSource, token: CancelToken) -> LayerIndex:
        """Download a layer into the store from one source."""
        layer, diff_id, early = wanted.layer, wanted.diff_id, wanted.early
        files, limits = self._store.files, self._settings.limits
        reading = nullcontext if early is None else early.reading
        with files.download_file(layer.digest) as work:
            try:
                index = download_layer(
                    layer, diff_id, work, limits, wanted.meter, source, self._workers, token, reading
                )
            except BaseException as error:
                if is_resumable(error):
                    files.keep_partial(work, layer.digest)
                raise
            checkpoint("image-pull.layer-fetched")
            files.put(work, files.blob_path(layer.digest))
            checkpoint("image-pull.layer-named")
        keep_list(layer, diff_id, files, index)
        return index
