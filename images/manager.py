"""The image part of the daemon, used on its event loop; blocking work runs in threads."""

from __future__ import annotations

import asyncio
import logging
import platform as machine
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from daemonkit.faults import Fault
from daemonkit.tasks import Background, complete
from images.concurrency import WorkerThreads
from images.image_settings import ImageSettings
from images.kernels.kernel_images import KernelImages
from images.pull.importing import Importer
from images.pull.progress import Progress
from images.pull.pull import Puller
from images.pull.pulls import MAX_PULLS, Pulls
from images.pull.repair import Outcome, Repair, Repairer, name_of
from images.registry import names
from images.registry.credentials import Credentials
from images.registry.facts import pack_image
from images.registry.manifests import Descriptor, Platform
from images.registry.names import Reference
from images.rootfs.stack import MAX_PARTS
from images.store.catalogue import StoredImage
from images.store.export import Piece, Wanted, pieces
from images.store.image_files import Usage
from images.store.store import ImageStore
from images.verify import Verification, verify
from images.worker.documents import DocumentReader
from images.worker.workers import LayerWorkers

log = logging.getLogger(__name__)
T = TypeVar("T")
# Seconds between two looks at how full the disk is, while layers of unfinished pulls are kept.
_LOOK_SECONDS = 60.0
PULLS_PER_NAMESPACE = MAX_PULLS // 2
"""Limit of pulls that pods of one namespace wait for; the kubelet gives the namespace."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


def this_platform() -> Platform:
    """The platform of zones on this host."""
    return Platform("linux", _MACHINES.get(machine.machine(), machine.machine()))


class ImageManager:
    """Everything about images.  Call start() before serving, and stop() at the end."""

    def __init__(self, settings: ImageSettings) -> None:
        self.settings = settings
        self.store = ImageStore(settings)
        # The semaphores admit at most as much work as threads exist, to prevent waiting between pulls: each
        # pull has its downloads, a plan, and filesystems to share or build.
        self._threads = WorkerThreads(MAX_PULLS * (settings.downloads_per_image + 1 + MAX_PARTS))
        self.pulls = Pulls(settings)
        self._workers = LayerWorkers(settings.limits)
        self.kernels = KernelImages(
            self.store, settings.kernels, settings.limits, self._threads, self._workers
        )
        self._puller = Puller(self.store, settings, this_platform(), self._threads, self._workers)
        self._reader = DocumentReader(self._workers, this_platform())
        self._importer = Importer(self._puller, self.store.files, settings.limits, self._threads)
        self._repairer = Repairer(self.store, self._puller, self._threads)
        self._namespaces: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._tasks = Background()
        self.on_named: Callable[[Reference], None] = lambda _: None
        """Called with the name after each pull, import or tag."""

    async def start(self) -> None:
        """Sweep the remains of a killed daemon."""
        await self._read_again()
        await self.run(self.store.open)
        self._tasks.spawn(self._expire(), "remove layers of unfinished pulls")

    async def stop(self) -> None:
        """Cancel all pulls and wait for their end."""
        await self.pulls.stop()
        await self._tasks.close(0)
        await self.run(self._workers.close)
        await self.run(self._threads.close)
        self.store.close()

    async def _read_again(self) -> None:
        """Read the documents of images whose facts are not stored: commit bef7f32f stores none.

        An image with unreadable documents counts as missing until the next pull.
        """
        for row in self.store.unread():
            read = partial(self._reader.image, row.manifest, row.config, row.id)
            try:
                found = await self._threads.run(read)
            except Fault as fault:
                log.warning("the stored image %s must be pulled again: %s", row.id, fault)
            else:
                await self.run(partial(self.store.add_facts, replace(row, facts=pack_image(found))))

    async def pull(
        self,
        reference: Reference,
        credentials: Credentials,
        watch: Callable[[Progress], None] = lambda _: None,
        namespace: str | None = None,
    ) -> StoredImage:
        """The image with this name at its registry now, ready to run.

        namespace: of the pod; its pods wait for at most PULLS_PER_NAMESPACE pulls at once, over all
        registries.
        """
        # Callers with different credentials must not share a pull: some may lack access.
        key = (str(reference), credentials.fingerprint())
        work = partial(self._puller.pull, reference, credentials)
        turn = nullcontext() if namespace is None else self._turn_of(namespace)
        async with turn:
            image = await self.pulls.run(key, str(reference), work, watch, reference.host)
        self.on_named(reference)
        return image

    async def import_layout(self, path: Path, name: Reference | None) -> list[tuple[StoredImage, str]]:
        """Import the images of a layout on this host, each with its new name ("": none); see Importer.run."""
        images = await self.pulls.run(object(), str(path), partial(self._importer.run, path, name))
        for _, given in images:
            if given:
                self.on_named(names.parse(given))
        return images

    async def verify(self, image: StoredImage) -> Verification:
        """Check an image's stored files against their digests; Missing if the image is gone."""
        return await self._threads.run(partial(verify, self.store, image))

    async def repair(
        self, image: StoredImage, found: Verification, credentials: Credentials
    ) -> tuple[list[Repair], Verification]:
        """Repair the findings of verify(); returns the repairs, and a new verification."""
        work = partial(self._repairer.run, image, found.damage, credentials)
        repairs = await self.pulls.run(object(), f"repair of {name_of(image)}", work)
        if found.kernel:
            repairs.append(await self._take_again(image))
        return repairs, await self.verify(self.store.get(image.id))

    async def mend(self, image: StoredImage) -> None:
        """Rebuild an image's damaged filesystems, if any.

        Refused if a rebuild needs a pull.
        """
        if image.damaged:
            work = partial(self._repairer.rebuild, image)
            await self.pulls.run(("mend", image.id), f"rebuild of {name_of(image)}", work)

    def _turn_of(self, namespace: str) -> asyncio.Semaphore:
        # Before the caller joins a pull: a waiting caller then holds nothing that another namespace may need.
        return self._namespaces.setdefault(namespace, asyncio.Semaphore(PULLS_PER_NAMESPACE))

    async def _take_again(self, image: StoredImage) -> Repair:
        what = "the kernel's files"
        try:
            await self.kernels.take_again(image.id)
        except Fault as fault:
            return Repair(what, Outcome.FAILED, str(fault))
        return Repair(what, Outcome.REBUILT, "of the layers kept here")

    async def _expire(self) -> None:
        """Remove layers of unfinished pulls when they expire, or the disk is full."""
        unfinished, kept = self.store.unfinished, self._puller.unfinished
        while True:
            kept.clear()
            left = await self._threads.run(lambda _: unfinished.trim())
            with suppress(TimeoutError):
                async with asyncio.timeout(None if left is None else min(left, _LOOK_SECONDS)):
                    await kept.wait()
                    continue
            await self._threads.run(lambda _: unfinished.relieve())

    async def tag(self, image: StoredImage, reference: Reference) -> str:
        """Add a name to an image, if the policy allows; returns the id of the image that had the name, "":
        none.

        Verifiers check the image's manifest, as for a pull by the name.
        """
        policy, manifest = self._puller.policy, self.store.manifest(image)
        policy.check_name(reference, "tag")
        kind = self.store.facts(image).manifest.kind
        await policy.check_content(reference, Descriptor(kind, image.manifest_digest, len(manifest)), "tag")
        before = await self.run(lambda: self.store.tag(image.id, str(reference)))
        self.on_named(reference)
        log.info(
            "%s is now a name of %s%s", reference, image.id, f", no longer of {before}" if before else ""
        )
        return before

    async def untag(self, reference: Reference) -> StoredImage:
        """Remove a name from an image; the image stays.  Missing: no image has the name."""
        image = await self.run(lambda: self.store.untag(str(reference)))
        log.info("%s is no longer a name of %s", reference, image.id)
        return image

    async def export(self, wanted: Sequence[Wanted]) -> AsyncGenerator[Piece, None]:
        """An OCI image layout with the images: each file, followed by its data; see export.pieces."""
        found = pieces(self.store, wanted)
        try:
            while (piece := await self._threads.run(lambda _: next(found, None))) is not None:
                yield piece
        finally:
            await complete(self._threads.run(lambda _: found.close()))

    async def remove(self, name_or_id: str) -> None:
        """Remove an image with all its names."""
        await self.run(lambda: self.store.remove(name_or_id))

    async def usage(self) -> Usage:
        """The disk usage of the store."""
        return await self.run(self.store.files.usage)

    async def run(self, work: Callable[[], T]) -> T:
        """Run short blocking work in a thread."""
        return await asyncio.to_thread(work)
