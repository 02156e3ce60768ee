"""The files of the store: paths, creation and removal.

On the disk, under ``<state_dir>/images``: ``images.db`` (the index), ``blobs/<algorithm>/<hex>`` (compressed
layers), ``filesystems/<hex>.squashfs`` (one layer or more; equal filesystems are hard links of one file),
``shelves/<hex>`` (tree caches), ``shelves/<hex>.entries`` (lists of layers' entries), ``kernels/<hex>/``
(files of a kernel image), ``ingest/`` (work in progress), ``partial/`` (partial layers).

A file gets its name after its bytes are synced. Exceptions: ``shelves``, whose files are made again if
damaged, and partial layers, which are verified once complete.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Refused

FS_TYPE = "squashfs"
LEAST_PARTIAL_BYTES = 4 << 20
"""Minimum size in bytes of a partial layer to keep for the next attempt."""
_LAYER = "layer-"


@dataclass(frozen=True)
class Usage:
    """The disk usage of the store: bytes as du counts them, and inodes."""

    path: Path
    bytes: int
    inodes: int


class StoreFiles:
    """Paths and files of the store, open in one process at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ingest = root / "ingest"
        self.index = root / "images.db"
        self._blobs, self._filesystems = root / "blobs", root / "filesystems"
        self._kernels, self._tree_caches = root / "kernels", root / "shelves"
        self._serials = itertools.count(1)
        self._partial = root / "partial"
        own = (self._filesystems, self._blobs, self._tree_caches, self._kernels, self._partial)
        for directory in (root, *own):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._guard = _only_one(root / "lock")

    def close(self) -> None:
        """Unlock the store for other processes."""
        os.close(self._guard)

    def clear_ingest(self) -> None:
        """Remove the unfinished work of a killed daemon, except for parts of layers."""
        for path in self.ingest.glob(f"{_LAYER}*"):
            if path.is_file() and path.stat().st_size >= LEAST_PARTIAL_BYTES:
                path.rename(self._partial / path.stem.removeprefix(_LAYER))
        shutil.rmtree(self.ingest, ignore_errors=True)
        self.ingest.mkdir(mode=0o700)

    def blob_path(self, digest: str) -> Path:
        """The path of a compressed layer, existing or not."""
        algorithm, _, value = digest.partition(":")
        return self._blobs / algorithm / value

    def fs_path(self, chain_id: str) -> Path:
        """The path of a filesystem, existing or not."""
        return self._filesystems / f"{chain_id.partition(':')[2]}.{FS_TYPE}"

    def paths(self, chain_ids: Sequence[str], digests: Sequence[str]) -> list[Path]:
        """The paths of filesystems, their tree caches, and layers."""
        return [
            *map(self.fs_path, chain_ids),
            *map(self.tree_cache_path, chain_ids),
            *map(self.blob_path, digests),
            *map(self.layer_cache_path, digests),
        ]

    def kernel_path(self, chain_id: str) -> Path:
        """The folder of a kernel image's files, existing or not."""
        return self._kernels / chain_id.partition(":")[2]

    def keep_kernels(self, chain_ids: Set[str]) -> None:
        """Remove the folders of all other chains. A rename before the removal hides half-removed folders."""
        kept = {self.kernel_path(chain_id) for chain_id in chain_ids}
        for folder in set(self._kernels.iterdir()) - kept:
            self._drop(folder)

    def drop_kernel(self, chain_id: str) -> None:
        """Remove the folder of a kernel image's files; none is fine."""
        if (folder := self.kernel_path(chain_id)).is_dir():
            self._drop(folder)

    def _drop(self, folder: Path) -> None:
        with self.work_folder("gone") as work:
            folder.rename(work)

    @contextmanager
    def work_folder(self, stem: str) -> Iterator[Path]:
        """A path for an unfinished folder, as work_file()."""
        path = self._work_path(stem)
        try:
            yield path
        finally:
            with suppress(FileNotFoundError):
                shutil.rmtree(path)

    def tree_cache_path(self, chain_id: str) -> Path:
        """The path of a filesystem's tree cache, existing or not."""
        return self._tree_caches / chain_id.partition(":")[2]

    def layer_cache_path(self, digest: str) -> Path:
        """The path of a layer's list of entries, existing or not."""
        return self._tree_caches / f"{digest.partition(':')[2]}.entries"

    @contextmanager
    def work_file(self, stem: str) -> Iterator[Path]:
        """A path for an unfinished file; removed when the body ends."""
        path = self._work_path(stem)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _work_path(self, stem: str) -> Path:
        # next() is atomic: two threads never get the same number.
        return self.ingest / f"{stem}.{next(self._serials)}"

    def put(self, work: Path, final: Path) -> None:
        """Give a synced file its final name."""
        if not final.parent.is_dir():
            final.parent.mkdir(mode=0o700, exist_ok=True)
            sync_directory(final.parent.parent)
        work.rename(final)
        sync_directory(final.parent)

    def link(self, equal: Path, replaced: Path, work: Path) -> bool:
        """Link a filesystem as ``work``; returns False if the file is gone, or is the file to be replaced."""
        # The file may be about to be removed; the new link keeps the contents.
        with suppress(OSError):
            if not (replaced.exists() and replaced.samefile(equal)):
                work.hardlink_to(equal)
                return True
        return False

    def same(self, chain_ids: Sequence[str], among: Iterable[str]) -> list[str]:
        """The given filesystems, and all others that are hard links of the same files."""
        inodes = {self._inode(chain_id) for chain_id in chain_ids} - {0}
        return [*chain_ids, *(other for other in among if self._inode(other) in inodes)]

    def _inode(self, chain_id: str) -> int:
        """The inode number of a filesystem's file; 0: no file."""
        try:
            return self.fs_path(chain_id).stat().st_ino
        except FileNotFoundError:
            return 0

    @contextmanager
    def download_file(self, digest: str, origin: str) -> Iterator[Path]:
        """Like work_file(), for a layer; begins with the partial layer of an earlier attempt.

        origin: of the bytes. Partial layers are unverified, hence never shared between origins.
        """
        partial = self.partial_path(digest, origin)
        with self.work_file(f"{_LAYER}{partial.name}") as work:
            with suppress(FileNotFoundError):
                partial.rename(work)
            yield work

    def keep_partial(self, work: Path, digest: str, origin: str) -> None:
        """Keep a partial layer for the next download_file(), if large enough."""
        if work.is_file() and work.stat().st_size >= LEAST_PARTIAL_BYTES:
            os.utime(work)
            work.rename(self.partial_path(digest, origin))

    def partial_path(self, digest: str, origin: str) -> Path:
        """The path of a partial layer, existing or not."""
        return self._partial / f"{digest.replace(':', '-')}-{origin}"

    def partial(self) -> list[Path]:
        """Every partial layer."""
        return list(self._partial.iterdir())

    def layers(self) -> list[Path]:
        """Every blob."""
        return list(self._blobs.glob("*/*"))

    def named(self) -> list[Path]:
        """Every blob, filesystem, tree cache, and list of a layer's entries."""
        return [*self._filesystems.iterdir(), *self.layers(), *self._tree_caches.iterdir()]

    def usage(self) -> Usage:
        """The present disk usage of the store."""
        blocks: dict[int, int] = {}
        for directory, _, files in os.walk(self.root):
            for path in (directory, *(os.path.join(directory, name) for name in files)):
                with suppress(FileNotFoundError):
                    status = os.lstat(path)
                    # A file with several names counts once.
                    blocks[status.st_ino] = status.st_blocks
        return Usage(self.root, 512 * sum(blocks.values()), len(blocks))


def _only_one(path: Path) -> int:
    guard = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(guard)
        raise Refused("open image store", str(path.parent), "another process has it open") from None
    return guard


def sync_directory(directory: Path) -> None:
    """Sync a directory: its names are then on disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
