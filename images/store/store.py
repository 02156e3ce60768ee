"""The image store: the images, their names, who holds them, and what may be removed.

Files without a row in the index are swept at start, so that a kill at any moment leaves nothing behind.
Compressed layers are kept: they take about a fifth of an unpacked copy, and spare the download when another
image shares them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Missing
from images.bounds.digests import matches
from images.globs import Globs
from images.settings import ImageSettings
from images.store.catalogue import Catalogue, StoredImage
from images.store.db import FilesystemRow, ImageDb, ImageRow
from images.store.files import StoreFiles
from images.store.reader import StoreReader
from images.store.unfinished import UnfinishedLayers


class ImageStore(StoreReader):
    """Safe to use from any thread; reads come from memory and do not wait.

    At start: open(), then hold() for every container that exists, then collect().
    """

    def __init__(self, settings: ImageSettings) -> None:
        self.files = StoreFiles(settings.state_dir / "images")
        self._lock = threading.RLock()
        self._leases: Counter[Path] = Counter()
        self._holds: dict[str, set[str]] = {}
        self._pins = Globs(settings.pinned)
        super().__init__(ImageDb(self.files.index))
        self.unfinished = UnfinishedLayers(self.files, settings, self._lock, self._in_use)
        self._load()

    def open(self) -> None:
        """Sweep what a killed run left behind; images removed while in use stay until collect()."""
        self.files.clear_ingest()
        checkpoint("image-start.cleared")
        with self._lock:
            self._forget_broken()
            self._sweep(list(self._now.filesystems), set(self.files.named()) - set(self.files.layers()))
            self.unfinished.trim()

    def close(self) -> None:
        """Close the index and release the store."""
        with self._lock:
            self._db.close()
            self.files.close()

    def holders(self, image_id: str) -> list[str]:
        """The owners of holds on an image."""
        with self._lock:
            return sorted(owner for owner, held in self._holds.items() if image_id in held)

    def hold(self, image_id: str, owner: str) -> None:
        """Keep the image's files until release(owner), even if the image is removed meanwhile.

        An owner may hold several.
        """
        with self._lock:
            if image_id not in self._now.rows:
                raise Missing("hold image", image_id, "no such image")
            self._holds.setdefault(owner, set()).add(image_id)

    def release(self, owner: str) -> None:
        """End an owner's holds (none is fine); files of images that were removed meanwhile go now."""
        with self._lock:
            for image_id in self._holds.pop(owner, ()):
                self._drop_if_unneeded(image_id)

    def collect(self) -> None:
        """Delete every removed image that nobody holds."""
        with self._lock:
            for image_id in [row.id for row in self._now.rows.values() if row.removed]:
                self._drop_if_unneeded(image_id)

    def remove(self, name_or_id: str) -> None:
        """Remove an image with all its names (no such image is fine); its files go once nobody holds it."""
        with self._lock:
            image = self.find(name_or_id)
            if image is None:
                return
            self._db.unname(image.id)
            checkpoint("image-remove.unnamed")
            self._load()
            self._drop_if_unneeded(image.id)

    def unused(self, fits: Callable[[StoredImage], bool] = lambda _: True) -> list[StoredImage]:
        """The images that nobody holds, that are not pinned, and that fit."""
        with self._lock:
            needed = {image_id for held in self._holds.values() for image_id in held}
            found = [image for image in self.images() if image.id not in needed and not image.pinned]
            return [image for image in found if fits(image)]

    def remove_unused(self, fits: Callable[[StoredImage], bool] = lambda _: True) -> list[StoredImage]:
        """Remove these images, except those that have been held meanwhile."""
        with self._lock:
            found = self.unused(fits)
            for image in found:
                self.remove(image.id)
            return found

    def has_filesystem(self, chain_id: str) -> bool:
        """Whether it is there, complete, whatever lies below it; stays true only while it is leased.

        One that is damaged is not there.
        """
        row = self._now.filesystems.get(chain_id)
        return row is not None and not row.damaged

    def lease(self, chain_ids: Sequence[str], digests: Sequence[str]) -> None:
        """Keep these filesystems and layers until end_lease()."""
        with self._lock:
            self._leases.update(self.files.paths(chain_ids, digests))

    def end_lease(self, chain_ids: Sequence[str], digests: Sequence[str], unfinished: bool = False) -> None:
        """End a lease; what no image has and nobody leases is removed.

        unfinished: layers are kept for the next try, within the bounds of UnfinishedLayers.
        """
        paths = self.files.paths(chain_ids, digests)
        with self._lock:
            self._leases.subtract(paths)
            self._leases += Counter()
            if unfinished:
                layers = [self.files.blob_path(digest) for digest in digests]
                self.unfinished.keep(layers)
                self.unfinished.trim()
                paths = [path for path in paths if path not in layers]
            self._sweep(chain_ids, paths)

    @contextmanager
    def leasing(self, chain_ids: Sequence[str], digests: Sequence[str]) -> Iterator[None]:
        """Hold a lease while the body runs."""
        self.lease(chain_ids, digests)
        try:
            yield
        finally:
            self.end_lease(chain_ids, digests)

    def add_filesystem(
        self, work: Path, row: FilesystemRow, accounts: Mapping[str, bytes | None], content: str = ""
    ) -> None:
        """Add a finished, synced filesystem image; the caller has leased it. See ImageDb.add_filesystem.

        A further name of a file that is damaged is damaged.
        """
        self.files.put(work, self.files.fs_path(row.chain_id))
        checkpoint("image-pull.filesystem-named")
        with self._lock:
            known = self._now.filesystems.values()
            others = [one.chain_id for one in known if one.damaged and one.chain_id != row.chain_id]
            self._db.add_filesystem(row, accounts, content)
            if row.chain_id in self.files.same(others, [row.chain_id]):
                self._db.mark_damaged([row.chain_id])
            self._load()

    def link_filesystem(self, content: str, chain_id: str, work: Path) -> str | None:
        """Give a filesystem of that content the further name ``work``; its digest, None: there is none."""
        rows = filter(None, map(self._now.filesystems.get, self._db.same_content(content)))
        sound = [row for row in rows if not row.damaged]
        path = self.files.fs_path
        linked = (row for row in sound if self.files.link(path(row.chain_id), path(chain_id), work))
        return next((row.digest for row in linked), None)

    def add_image(self, row: ImageRow, image_names: tuple[str, ...], replace: bool = False) -> StoredImage:
        """Add an image whose filesystems and layers are there; replace: what is stored of it already."""
        with self._lock:
            self._db.add_image(row, image_names, replace)
            self._load()
            return self._now.images[row.id]

    def replace_image(self, row: ImageRow) -> StoredImage:
        """Replace an image's documents and list of layers, and keep its names; Missing when it is gone."""
        with self._lock:
            self.get(row.id)
            self._db.replace_image(row)
            self._load()
            return self._now.images[row.id]

    def add_facts(self, row: ImageRow) -> None:
        """Note what the documents of an image say."""
        with self._lock:
            self._db.add_facts(row)
            self._load()

    def mark_damaged(self, rows: Sequence[FilesystemRow]) -> None:
        """Give filesystems to no new container until they are built again; those that have been are sound."""
        with self._lock:
            known = self._now.filesystems
            damaged = [row.chain_id for row in rows if known.get(row.chain_id) == row]
            self._db.mark_damaged(self.files.same(damaged, known))
            checkpoint("image-verify.marked")
            self._load()

    def usable(self, image: StoredImage) -> bool:
        """Whether containers can use an image: it is sound, or can be rebuilt from the layers here."""
        row = self.row(image.id)
        if row is None or not image.damaged:
            return row is not None
        if not matches(row.config, row.id) or not matches(row.manifest, row.manifest_digest):
            return False
        here = [digest for digest, _ in row.layers if self.files.blob_path(digest).is_file()]
        return len(here) == len(image.config["rootfs"]["diff_ids"])

    def tag(self, image_id: str, name: str) -> str:
        """Give an image one more name; the id of the image that had it, "": none; raises Missing."""
        with self._lock:
            before, image = self.find(name), self.find(image_id)
            if image is None:
                raise Missing("tag image", image_id, "it was removed")
            self._db.name(name, image.id)
            checkpoint("image-tag.recorded")
            self._load()
            return "" if before in (None, image) else before.id

    def untag(self, name: str) -> StoredImage:
        """Remove a name from its image, which stays; returns the image without it; raises Missing."""
        with self._lock:
            image = self.find(name)
            if image is None or name not in (*image.repo_tags, *image.repo_digests):
                raise Missing("untag image", name, "no image has this name")
            self._db.name(name, None)
            checkpoint("image-untag.recorded")
            self._load()
            return self._now.images[image.id]

    def add_kernel(self, work: Path, chain_id: str) -> None:
        """Add the finished, synced folder of a kernel image's files; Missing when the image is gone."""
        with self._lock:
            if chain_id not in {row.chain_id for row in self._now.rows.values()}:
                raise Missing("take kernel out of image", chain_id, "it was removed")
            # Another caller may have added it meanwhile.
            if not self.files.kernel_path(chain_id).is_dir():
                self.files.put(work, self.files.kernel_path(chain_id))

    def _load(self) -> None:
        images, filesystems = self._db.images(), self._db.filesystems()
        names, path = self._db.names(), self.files.fs_path
        self._catalogue = Catalogue(images, names, filesystems, path, self._catalogue, self._pins)

    def _drop_if_unneeded(self, image_id: str) -> None:
        row = self._now.rows.get(image_id)
        if row is None or not row.removed or any(image_id in held for held in self._holds.values()):
            return
        self._db.delete_image(image_id)
        checkpoint("image-remove.forgotten")
        self._load()
        stack = [one.chain_id for one in self._now.stack(row.chain_id)]
        digests = [digest for digest, _ in row.layers]
        self._sweep(stack, self.files.paths(stack, digests))

    def _forget_broken(self) -> None:
        """Delete rows whose files are gone: an operator removed them, or the disk lost them."""
        now, broken = self._now, self._now.broken()
        forgotten = [
            row
            for row in now.rows.values()
            if (stack := now.stack(row.chain_id))[0].below or any(one.chain_id in broken for one in stack)
        ]
        for row in forgotten:
            self._db.delete_image(row.id)
        self._db.drop_filesystems(sorted(broken))
        self._load()
        # The image is pulled again; what is here of it need not be.
        self.unfinished.keep([self.files.blob_path(digest) for row in forgotten for digest, _ in row.layers])

    def _sweep(self, chain_ids: Sequence[str], paths: Iterable[Path]) -> None:
        """Remove those of the given filesystems and files that no image has and no pull leases."""
        wanted = {one.chain_id for row in self._now.rows.values() for one in self._now.stack(row.chain_id)}
        unused = [
            chain_id
            for chain_id in chain_ids
            if chain_id in self._now.filesystems
            and chain_id not in wanted
            and self.files.fs_path(chain_id) not in self._leases
        ]
        # On a full disk the index cannot be changed, and mostly need not be.
        if unused:
            self._db.drop_filesystems(unused)
            checkpoint("image-remove.filesystem-forgotten")
            self._load()
        for path in set(paths) - self._in_use():
            path.unlink(missing_ok=True)
            checkpoint("image-remove.file-removed")
        self.files.keep_kernels({row.chain_id for row in self._now.rows.values()})

    def _in_use(self) -> set[Path]:
        """The files that the index names, or a pull leases."""
        digests = [digest for row in self._now.rows.values() for digest, _ in row.layers]
        return {*self.files.paths(list(self._now.filesystems), digests), *self._leases}
