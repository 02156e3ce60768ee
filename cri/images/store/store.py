"""The image store: which images there are, under which names, who needs them, and what may be removed.

Files without a row in the index are swept at start, so that a kill at any moment leaves nothing behind.
Compressed layers are kept: they take about a fifth of an unpacked copy, and spare the download when another
image shares them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cri.images.globs import Globs
from cri.images.settings import ImageSettings
from cri.images.store.catalogue import Catalogue, StoredImage
from cri.images.store.db import FilesystemRow, ImageDb, ImageRow
from cri.images.store.files import FS_TYPE, StoreFiles
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Missing


class ImageStore:
    """Safe to use from any thread; reads come from memory and do not wait.

    At start: open(), then hold() for every container that exists, then collect().
    """

    def __init__(self, settings: ImageSettings) -> None:
        self.files = StoreFiles(settings.state_dir / "images")
        self._lock = threading.RLock()
        self._leases: Counter[Path] = Counter()
        self._holds: dict[str, set[str]] = {}
        self._pins = Globs(settings.pinned)
        self._catalogue: Catalogue | None = None
        self._db = ImageDb(self.files.index)
        self._load()

    def open(self) -> None:
        """Sweep what a killed run left behind; images removed while in use stay until collect()."""
        self.files.clear_ingest()
        checkpoint("image-start.cleared")
        with self._lock:
            self._forget_broken()
            self._sweep(list(self._now.filesystems), self.files.named())

    def close(self) -> None:
        """Close the index and release the store."""
        with self._lock:
            self._db.close()
            self.files.close()

    # Reading.

    def images(self) -> list[StoredImage]:
        """All images that were not removed, in the order of their ids."""
        return self._now.listed()

    def resolve(self, name_or_id: str) -> StoredImage:
        """The image by name, id, or unique beginning of an id; raises Missing and Invalid."""
        found = self.find(name_or_id)
        if found is None:
            raise Missing("find image", name_or_id[:300], "no such image", "pull it first")
        return found

    def find(self, name_or_id: str) -> StoredImage | None:
        """As resolve(), but None when there is no such image."""
        return self._now.find(name_or_id)

    def get(self, image_id: str) -> StoredImage:
        """The image by its full id, even when it was removed while in use."""
        image = self._now.images.get(image_id)
        if image is None:
            raise Missing("find image", image_id[:100], "no such image")
        return image

    def read_file(self, image: StoredImage, path: str, limit: int) -> bytes | None:
        """/etc/passwd or /etc/group of the image (untrusted); None: none there, or larger than limit."""
        data = self._db.account_file(self.stack(image.id), path)
        return data if data is not None and len(data) <= limit else None

    def manifest(self, image: StoredImage) -> bytes:
        """The manifest the image was pulled by, byte for byte."""
        return self._now.rows[image.id].manifest

    def stored(self, image: StoredImage) -> tuple[ImageRow, list[FilesystemRow]]:
        """What the index says of an image and its filesystems, lowest first; raises Missing."""
        now = self._now
        row = now.rows.get(image.id)
        if row is None:
            raise Missing("find image", image.id, "it was removed")
        return row, now.stack(row.chain_id)

    def stack(self, image_id: str) -> list[str]:
        """The names of an image's filesystems, lowest first; none when nothing is left of it."""
        now = self._now
        row = now.rows.get(image_id)
        return [] if row is None else [one.chain_id for one in now.stack(row.chain_id)]

    def has(self, image_id: str) -> bool:
        """Whether anything of it is left, also when it was removed while in use."""
        return image_id in self._now.rows

    # Holding and removing.

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

    def unused(self) -> list[StoredImage]:
        """Images that nobody holds and that are not pinned."""
        with self._lock:
            needed = {image_id for held in self._holds.values() for image_id in held}
            return [image for image in self.images() if image.id not in needed and not image.pinned]

    def remove_unused(self) -> list[StoredImage]:
        """Remove them; what has come to be held meanwhile stays."""
        with self._lock:
            found = self.unused()
            for image in found:
                self.remove(image.id)
            return found

    # Adding.

    def has_filesystem(self, chain_id: str) -> bool:
        """Whether it is there, complete, whatever lies below it; stays true only while it is leased."""
        return chain_id in self._now.filesystems

    def lease(self, chain_ids: Sequence[str], digests: Sequence[str]) -> None:
        """Keep these filesystems and layers until end_lease(), whoever else needs them or not."""
        with self._lock:
            self._leases.update(self._files_of(chain_ids, digests))

    def end_lease(self, chain_ids: Sequence[str], digests: Sequence[str]) -> None:
        """End one lease; what no image has and nobody leases is removed."""
        paths = self._files_of(chain_ids, digests)
        with self._lock:
            self._leases.subtract(paths)
            self._leases += Counter()
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
        self,
        work: Path,
        chain_id: str,
        below: str,
        accounts: Mapping[str, bytes | None],
        digest: str,
        content_id: str = "",
    ) -> None:
        """Add a finished, synced filesystem image; the caller has leased it.

        below, accounts, content_id: see FilesystemRow and ImageDb.
        """
        row = FilesystemRow(chain_id, FS_TYPE, work.stat().st_size, digest, below)
        self.files.put(work, self.files.fs_path(chain_id))
        checkpoint("image-pull.filesystem-named")
        with self._lock:
            self._db.add_filesystem(row, accounts, content_id)
            self._load()

    def link_filesystem(self, content_id: str, chain_id: str, work: Path) -> str | None:
        """Give a filesystem of that content the further name ``work``; its digest, None: there is none."""
        rows = map(self._now.filesystems.get, self._db.same_content(content_id))
        return self.files.link(filter(None, rows), chain_id, work)

    def add_image(self, row: ImageRow, image_names: tuple[str, ...]) -> StoredImage:
        """Add an image whose filesystems and layers are there."""
        with self._lock:
            self._db.add_image(row, image_names)
            self._load()
            return self._now.images[row.id]

    def add_kernel(self, work: Path, chain_id: str) -> None:
        """Add the finished, synced folder of a kernel image's files; Missing when the image is gone."""
        with self._lock:
            if chain_id not in {row.chain_id for row in self._now.rows.values()}:
                raise Missing("take kernel out of image", chain_id, "it was removed")
            self.files.put(work, self.files.kernel_path(chain_id))

    def _load(self) -> None:
        images, filesystems = self._db.images(), self._db.filesystems()
        known = self._catalogue.images if self._catalogue is not None else {}
        self._catalogue = Catalogue(
            images, self._db.names(), filesystems, self.files.fs_path, known, self._pins
        )

    @property
    def _now(self) -> Catalogue:
        assert self._catalogue is not None
        return self._catalogue

    def _drop_if_unneeded(self, image_id: str) -> None:
        row = self._now.rows.get(image_id)
        if row is None or not row.removed or any(image_id in held for held in self._holds.values()):
            return
        self._db.delete_image(image_id)
        checkpoint("image-remove.forgotten")
        self._load()
        stack = [one.chain_id for one in self._now.stack(row.chain_id)]
        digests = [digest for digest, _ in row.layers]
        self._sweep(stack, self._files_of(stack, digests))

    def _files_of(self, chain_ids: Sequence[str], digests: Sequence[str]) -> list[Path]:
        files = self.files
        return [
            *map(files.fs_path, chain_ids),
            *map(files.tree_cache_path, chain_ids),
            *map(files.blob_path, digests),
            *map(files.layer_cache_path, digests),
        ]

    def _forget_broken(self) -> None:
        """Delete rows whose files are gone: an operator removed them, or the disk lost them."""
        broken = {
            chain_id
            for chain_id, row in self._now.filesystems.items()
            if not (path := self.files.fs_path(chain_id)).is_file() or path.stat().st_size != row.bytes
        }
        for row in list(self._now.rows.values()):
            stack = self._now.stack(row.chain_id)
            if stack[0].below or any(one.chain_id in broken for one in stack):
                self._db.delete_image(row.id)
        self._db.drop_filesystems(sorted(broken))
        self._load()

    def _sweep(self, chain_ids: Sequence[str], paths: Sequence[Path]) -> None:
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
        digests = [digest for row in self._now.rows.values() for digest, _ in row.layers]
        needed = set(self._files_of(list(self._now.filesystems), digests))
        for path in set(paths) - needed - set(self._leases):
            path.unlink(missing_ok=True)
            checkpoint("image-remove.file-removed")
        self.files.keep_kernels({row.chain_id for row in self._now.rows.values()})


def now() -> int:
    """Nanoseconds since the epoch."""
    return time.time_ns()
