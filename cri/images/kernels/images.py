"""Kernel images of the store: told, listed, and their files taken out when a zone first boots from one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cri.images.cancel import Cancel
from cri.images.errors import Corrupt, disk_full
from cri.images.kernels import kconfig, metadata
from cri.images.kernels.metadata import Metadata
from cri.images.kernels.plan import ADDONS, CONFIG, INITRAMFS, KERNEL, METADATA, KernelPlan, find, name_of
from cri.images.kernels.take import take
from cri.images.settings import ImageLimits, KernelSettings
from cri.images.sharing import Shared
from cri.images.store.catalogue import StoredImage
from cri.images.store.store import ImageStore
from daemonkit.checkpoints import checkpoint
from daemonkit.disk_space import is_full
from daemonkit.faults import Broken, Fault, Refused

ZONE = "zone:"
"""Before a pod's id: the holder of the image that its zone boots from.  Other holders are containers."""

_TAKE = "take kernel out of image"


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """For protectd; None: the image has no such file."""

    name: str
    image: Path
    initramfs: Path | None
    addons: Path | None


@dataclass(frozen=True, slots=True)
class KernelImage:
    """An image that says it is one.  ``sizes``: of its files; ``fault``: why no zone can boot from it."""

    image: StoredImage
    metadata: Metadata
    sizes: dict[str, int]
    taken_out: bool
    fault: str = ""


class KernelImages:
    """All of it is done in threads; an image has to be held by whoever asks for its files."""

    def __init__(self, store: ImageStore, settings: KernelSettings, limits: ImageLimits) -> None:
        self._store = store
        self._settings = settings
        self._limits = limits
        self._shared: Shared[None] = Shared()
        self._plans: dict[str, KernelPlan | Fault] = {}

    def files(self, image_id: str, cancel: Cancel) -> KernelFiles:
        """Taken out when they are not there yet.

        Refused: it is no kernel image, or none for zones; Oversized; Exhausted (disk); Corrupt, Broken.
        """
        image = self._store.get(image_id)
        folder = self._store.files.kernel_path(image.chain_id)
        if not folder.is_dir():
            self._shared.run(image.chain_id, lambda: self._take(image, folder, cancel), cancel)
        paths = [folder / name for name in (KERNEL, INITRAMFS, ADDONS)]
        kernel, initramfs, addons = (path if path.is_file() else None for path in paths)
        if kernel is None:
            raise Broken(_TAKE, name_of(image), f"{paths[0]} is gone", "remove it, and pull it again")
        return KernelFiles(name_of(image), kernel, initramfs, addons)

    def listed(self, cancel: Cancel) -> list[KernelImage]:
        """Every image that has /kernel/metadata."""
        found = []
        for image in self._store.images():
            untrusted = self._store.read_file(image, metadata.PATH, self._limits.account_file_bytes)
            if untrusted is not None:
                found.append(self._seen(image, untrusted, cancel))
        self._forget()
        return found

    def _seen(self, image: StoredImage, untrusted: bytes, cancel: Cancel) -> KernelImage:
        said, sizes, fault = Metadata(), dict[str, int](), ""
        try:
            said = metadata.parse(untrusted, name_of(image))
            sizes = {name: content.stored for name, content in self._plan(image, cancel).files.items()}
        except Fault as wrong:
            fault = wrong.cause
        taken_out = self._store.files.kernel_path(image.chain_id).is_dir()
        return KernelImage(image, said, sizes, taken_out, fault)

    def _plan(self, image: StoredImage, cancel: Cancel) -> KernelPlan:
        """Kept, as reading all layers takes a while; not when the store is at fault, which may be mended."""
        known = self._plans.get(image.id)
        if known is None:
            try:
                known = find(self._store, image, self._settings, self._limits, cancel)
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

    def _take(self, image: StoredImage, folder: Path, cancel: Cancel) -> None:
        if folder.is_dir():
            return
        plan = self._plan(image, cancel)
        try:
            with self._store.files.work_folder("kernel") as work:
                take(plan, work, cancel)
                self._check(image, work, plan)
                cancel.check()
                self._store.add_kernel(work, image.chain_id)
                checkpoint("kernel-take.named")
        except OSError as error:
            if is_full(error):
                raise disk_full(_TAKE, plan.subject) from error
            raise Broken(_TAKE, plan.subject, str(error)) from error

    def _check(self, image: StoredImage, work: Path, plan: KernelPlan) -> None:
        """Refused when the kernel says that it cannot be a zone's; that is told from then on."""
        try:
            metadata.parse((work / METADATA).read_bytes(), plan.subject)
            if CONFIG in plan.files:
                kconfig.check((work / CONFIG).read_bytes(), plan.subject, plan.files.keys())
        except Refused as fault:
            self._plans[image.id] = fault
            raise
