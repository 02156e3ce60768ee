"""Kernel images in the store: recognised, listed, and extracted when a zone first boots from one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Broken, Fault, Refused
from daemonkit.host.disk_space import is_full
from images.bounds.cancel import CancelToken
from images.bounds.limits import ImageLimits
from images.concurrency import SingleFlight, WorkerThreads
from images.image_errors import Corrupt, disk_full
from images.image_settings import KernelSettings
from images.kernels import metadata
from images.kernels.kernel_plan import ADDONS, INITRAMFS, KERNEL, METADATA, KernelPlan, find_kernel, name_of
from images.kernels.metadata import Metadata
from images.kernels.take import take_kernel
from images.store.catalogue import StoredImage
from images.store.store import ImageStore
from images.worker.workers import LayerWorkers

ZONE = "zone:"
"""Prefix of a pod's id in the holder of its zone's kernel image.  Other holders are containers."""

_TAKE = "take kernel out of image"


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """Paths for protectd; None: the image has no such file."""

    name: str
    image: Path
    initramfs: Path | None
    addons: Path | None


@dataclass(frozen=True, slots=True)
class KernelImage:
    """An image with /kernel/metadata.

    ``sizes``: of its files; ``fault``: the reason why zones cannot boot.
    """

    image: StoredImage
    metadata: Metadata
    sizes: dict[str, int]
    taken_out: bool
    fault: str = ""


class KernelImages:
    """The kernel images of the store.  A caller must hold an image to use its files."""

    def __init__(
        self,
        store: ImageStore,
        settings: KernelSettings,
        limits: ImageLimits,
        threads: WorkerThreads,
        workers: LayerWorkers,
    ) -> None:
        self._store = store
        self._settings = settings
        self._limits = limits
        self._threads = threads
        self._workers = workers
        self._taking: SingleFlight[None] = SingleFlight()
        self._plans: dict[str, KernelPlan | Fault] = {}

    async def files(self, image_id: str) -> KernelFiles:
        """The paths of an image's files, extracted on the first call.

        Refused: no kernel image, or no kernel for zones; Oversized; Exhausted (disk); Corrupt, Broken.
        """
        image = self._store.get(image_id)
        await self._taking.run(image.chain_id, lambda: self._threads.run(partial(self._take, image)))
        return await self._threads.run(lambda _: self._files(image))

    async def take_again(self, image_id: str) -> None:
        """Extract the files of an image again; running zones keep the old files.  Faults: as files()."""
        image = self._store.get(image_id)
        await self._threads.run(lambda _: self._store.files.drop_kernel(image.chain_id))
        self._plans.pop(image_id, None)
        await self.files(image_id)

    async def listed(self) -> list[KernelImage]:
        """List every image with /kernel/metadata."""
        return await self._threads.run(self._listed)

    def _files(self, image: StoredImage) -> KernelFiles:
        folder = self._store.files.kernel_path(image.chain_id)
        paths = [folder / name for name in (KERNEL, INITRAMFS, ADDONS)]
        kernel, initramfs, addons = (path if path.is_file() else None for path in paths)
        if kernel is None:
            raise Broken(_TAKE, name_of(image), f"{paths[0]} is gone", "remove it, and pull it again")
        return KernelFiles(name_of(image), kernel, initramfs, addons)

    def _listed(self, token: CancelToken) -> list[KernelImage]:
        found = []
        for image in self._store.images():
            untrusted = self._store.read_file(image, metadata.PATH, self._limits.account_file_bytes)
            if untrusted is not None:
                found.append(self._seen(image, untrusted, token))
        self._forget()
        return found

    def _seen(self, image: StoredImage, untrusted: bytes, token: CancelToken) -> KernelImage:
        said, sizes, fault = Metadata(), dict[str, int](), ""
        try:
            said = metadata.parse(untrusted, name_of(image))
            sizes = {name: content.stored for name, content in self._plan(image, token).files.items()}
        except Fault as wrong:
            fault = wrong.cause
        taken_out = self._store.files.kernel_path(image.chain_id).is_dir()
        return KernelImage(image, said, sizes, taken_out, fault)

    def _plan(self, image: StoredImage, token: CancelToken) -> KernelPlan:
        """The plan, cached because reading all layers takes a while; faults of the store are not cached."""
        known = self._plans.get(image.id)
        if known is None:
            try:
                known = find_kernel(self._store, image, self._settings, self._limits, self._workers, token)
            except (Broken, Corrupt):
                raise
            except Fault as fault:
                known = fault
            self._plans[image.id] = known
        if isinstance(known, Fault):
            raise known.with_traceback(None)
        return known

    def _forget(self) -> None:
        for image_id in [one for one in self._plans if not self._store.has(one)]:
            self._plans.pop(image_id, None)

    def _take(self, image: StoredImage, token: CancelToken) -> None:
        if self._store.files.kernel_path(image.chain_id).is_dir():
            return
        plan = self._plan(image, token)
        try:
            with self._store.files.work_folder("kernel") as work:
                self._take_into(work, image, plan, token)
                token.check()
                self._store.add_kernel(work, image.chain_id)
                checkpoint("kernel-take.named")
        except OSError as error:
            if is_full(error):
                raise disk_full(_TAKE, plan.subject) from error
            raise Broken(_TAKE, plan.subject, str(error)) from error

    def _take_into(self, work: Path, image: StoredImage, plan: KernelPlan, token: CancelToken) -> None:
        """Refused if the kernel was not built for zones; the refusal is cached."""
        try:
            take_kernel(plan, work, self._workers, token)
            metadata.parse((work / METADATA).read_bytes(), plan.subject)
        except Corrupt:
            raise
        except Refused as fault:
            self._plans[image.id] = fault
            raise
