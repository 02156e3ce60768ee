"""The image store: images, names, holders, and removal.

At start the store removes files without a row in the index; a kill at any moment leaves nothing behind.
Compressed layers are kept: their size is about a fifth of an unpacked copy, and images with the same layers
then need no download.
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
from images.image_settings import ImageSettings
from images.store.catalogue import Catalogue, StoredImage
from images.store.db import FilesystemRow, ImageDb, ImageRow
from images.store.image_files import StoreFiles
from images.store.reader import StoreReader
from images.store.unfinished import UnfinishedLayers


class ImageStore(StoreReader):
    """Safe to use from any thread; reads come from memory and do not wait.

    At start: open(), then hold() for every existing container, then collect().
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
        """Sweep the remains of a killed run; images removed while in use stay until collect()."""
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
        """Keep the image's files until release(owner), even if the image is removed in between.

        An owner may hold several images.
        """
        with self._lock:
            if image_id not in self._now.rows:
                raise Missing("hold image", image_id, "no such image")
            self._holds.setdefault(owner, set()).add(image_id)

    def release(self, owner: str) -> None:
        """End an owner's holds, if any; deletes images marked removed that lost their last holder."""
        with self._lock:
            for image_id in self._holds.pop(owner, ()):
                self._drop_if_unneeded(image_id)

    def collect(self) -> None:
        """Delete every removed image without a holder."""
        with self._lock:
            for image_id in [row.id for row in self._now.rows.values() if row.removed]:
                self._drop_if_unneeded(image_id)

    def remove(self, name_or_id: str) -> None:
        """Remove an image with all its names, if it exists; the files go with the last holder."""
        with self._lock:
            image = self.find(name_or_id)
            if image is None:
                return
            self._db.unname(image.id)
            checkpoint("image-remove.unnamed")
            self._load()
            self._drop_if_unneeded(image.id)

    def unused(self, fits: Callable[[StoredImage], bool] = lambda _: True) -> list[StoredImage]:
        """Images without a holder that are not pinned and match ``fits``."""
        with self._lock:
            needed = {image_id for held in self._holds.values() for image_id in held}
            found = [image for image in self.images() if image.id not in needed and not image.pinned]
            return [image for image in found if fits(image)]

    def remove_unused(self, fits: Callable[[StoredImage], bool] = lambda _: True) -> list[StoredImage]:
        """Remove the images of unused(); returns them."""
        with self._lock:
            found = self.unused(fits)
            for image in found:
                self.remove(image.id)
            return found

    def has_filesystem(self, chain_id: str) -> bool:
        """Whether the store has a sound filesystem; reliable only under a lease.

        The filesystems below may be missing.
        """
        row = self._now.filesystems.get(chain_id)
        return row is not None and not row.damaged

    def lease(self, chain_ids: Sequence[str], digests: Sequence[str]) -> None:
        """Keep these filesystems and layers until end_lease()."""
        with self._lock:
            self._leases.update(self.files.paths(chain_ids, digests))

    def end_lease(self, chain_ids: Sequence[str], digests: Sequence[str], unfinished: bool = False) -> None:
        """End a lease; removes files without an image or another lease.

        unfinished: layers are kept for the next attempt, within the bounds of UnfinishedLayers.
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
        """Add a finished, synced filesystem image, leased by the caller. See ImageDb.add_filesystem.

        A hard link of a damaged file is marked damaged too.
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
        """Link a sound filesystem of equal content as ``work``; returns the digest, None without a match."""
        rows = filter(None, map(self._now.filesystems.get, self._db.same_content(content)))
        sound = [row for row in rows if not row.damaged]
        path = self.files.fs_path
        linked = (row for row in sound if self.files.link(path(row.chain_id), path(chain_id), work))
        return next((row.digest for row in linked), None)

    def add_image(self, row: ImageRow, image_names: tuple[str, ...], replace: bool = False) -> StoredImage:
        """Add an image with stored filesystems and layers; replace: replace the stored documents."""
        with self._lock:
            self._db.add_image(row, image_names, replace)
            self._load()
            return self._now.images[row.id]

    def replace_image(self, row: ImageRow) -> StoredImage:
        """Replace an image's documents and list of layers, keep the names; Missing if the image is gone."""
        with self._lock:
            self.get(row.id)
            self._db.replace_image(row)
            self._load()
            return self._now.images[row.id]

    def add_facts(self, row: ImageRow) -> None:
        """Store the facts of an image's documents."""
        with self._lock:
            self._db.add_facts(row)
            self._load()

    def mark_damaged(self, rows: Sequence[FilesystemRow]) -> None:
        """Mark filesystems damaged, for no new container until a rebuild; skips rows changed since."""
        with self._lock:
            known = self._now.filesystems
            damaged = [row.chain_id for row in rows if known.get(row.chain_id) == row]
            self._db.mark_damaged(self.files.same(damaged, known))
            checkpoint("image-verify.marked")
            self._load()

    def usable(self, image: StoredImage) -> bool:
        """Whether containers can use an image: sound, or with all layers for a rebuild."""
        row = self.row(image.id)
        if row is None or not image.damaged:
            return row is not None
        if not matches(row.config, row.id) or not matches(row.manifest, row.manifest_digest):
            return False
        here = [digest for digest, _ in row.layers if self.files.blob_path(digest).is_file()]
        return len(here) == len(image.config["rootfs"]["diff_ids"])

    def tag(self, image_id: str, name: str) -> str:
        """Add a name to an image; returns the id of the image that had the name, "": none; raises Missing."""
        with self._lock:
            before, image = self.find(name), self.find(image_id)
            if image is None:
                raise Missing("tag image", image_id, "it was removed")
            self._db.name(name, image.id)
            checkpoint("image-tag.recorded")
            self._load()
            return "" if before in (None, image) else before.id

    def untag(self, name: str) -> StoredImage:
        """Remove a name from an image; returns the image without the name; raises Missing."""
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
            # Another caller may have added the folder already.
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
        """Delete rows with missing files: removed by an operator, or lost by the disk."""
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
        # Keep the remaining layers for the next pull of the image.
        self.unfinished.keep([self.files.blob_path(digest) for row in forgotten for digest, _ in row.layers])

    def _sweep(self, chain_ids: Sequence[str], paths: Iterable[Path]) -> None:
        """Remove the given filesystems and files, except those of an image or a lease."""
        wanted = {one.chain_id for row in self._now.rows.values() for one in self._now.stack(row.chain_id)}
        unused = [
            chain_id
            for chain_id in chain_ids
            if chain_id in self._now.filesystems
            and chain_id not in wanted
            and self.files.fs_path(chain_id) not in self._leases
        ]
        # On a full disk the index cannot change, and mostly need not.
        if unused:
            self._db.drop_filesystems(unused)
            checkpoint("image-remove.filesystem-forgotten")
            self._load()
        for path in set(paths) - self._in_use():
            path.unlink(missing_ok=True)
            checkpoint("image-remove.file-removed")
        self.files.keep_kernels({row.chain_id for row in self._now.rows.values()})

    def _in_use(self) -> set[Path]:
        """Files in the index or under a lease."""
        digests = [digest for row in self._now.rows.values() for digest, _ in row.layers]
        return {*self.files.paths(list(self._now.filesystems), digests), *self._leases}
