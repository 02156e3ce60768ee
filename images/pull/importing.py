"""Imports images from a layout or archive on this host."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from daemonkit.faults import Invalid
from daemonkit.tasks import complete
from images.bounds.limits import ImageLimits
from images.concurrency import WorkerThreads
from images.pull.candidates import Candidates, origin_of
from images.pull.progress import Progress
from images.pull.pull import Puller
from images.registry import names
from images.registry.archives import ImageLayout, ListedImage, open_layout
from images.registry.health import HostHealth
from images.registry.names import Reference
from images.store.catalogue import StoredImage
from images.store.image_files import StoreFiles


class Importer:
    """Imports images through the puller, with files as the source."""

    def __init__(
        self, puller: Puller, files: StoreFiles, limits: ImageLimits, threads: WorkerThreads
    ) -> None:
        self._puller = puller
        self._files = files
        self._limits = limits
        self._threads = threads

    async def run(
        self, path: Path, name: Reference | None, progress: Progress
    ) -> list[tuple[StoredImage, str]]:
        """Import the images of a layout; returns each with its new name ("": none).

        name: requires that the layout holds one image.
        """
        with self._files.work_file("archive") as work:
            try:
                open_it = partial(open_layout, path, self._limits, work)
                return await self._import_all(await self._threads.run(open_it), path, name, progress)
            finally:
                # Removing a large file takes time.
                await complete(self._threads.run(lambda _: work.unlink(missing_ok=True)))

    async def _import_all(
        self, layout: ImageLayout, path: Path, name: Reference | None, progress: Progress
    ) -> list[tuple[StoredImage, str]]:
        listed = await self._threads.run(lambda _: layout.images())
        found = [item for item in listed if self._puller.resolver.fits(item.target.platform)]
        if not found:
            raise Invalid("import", str(path), "it holds no image for this platform")
        if name is not None and len({item.target.digest for item in found}) > 1:
            raise Invalid(
                "import", str(path), f"it holds {len(found)} images, one name is not enough for them"
            )
        candidates = Candidates((layout,), "", HostHealth(), progress, origin_of(str(path)))
        return [await self._import(item, name, candidates, progress) for item in found]

    async def _import(
        self, item: ListedImage, name: Reference | None, candidates: Candidates, progress: Progress
    ) -> tuple[StoredImage, str]:
        reference = name or (names.parse(item.name) if item.name else None)
        document = await self._puller.resolver.read(item.target, candidates)
        image = await self._puller.resolver.resolve(document, candidates)
        given = (str(reference), reference.at(item.target.digest)) if reference is not None else ()
        return await self._puller.keep(image, given, candidates, progress), str(reference or "")
