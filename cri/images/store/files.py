"""The files of the store: their paths, and how they come and go.

On the disk, under ``<state_dir>/images``: ``images.db`` (the index), ``blobs/<algorithm>/<hex>`` (compressed
layers), ``filesystems/<hex>.squashfs`` (of one layer or more; equal ones are one file with several names),
``shelves/<hex>`` (their tree caches), ``shelves/<hex>.entries`` (what is in a layer), ``kernels/<hex>/``
(what was taken out of a kernel image), ``ingest/`` (work in progress). A file gets its name after its bytes
are on the disk, but for those on the shelves, which are made again where they are damaged.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cri.images.store.db import FilesystemRow
from daemonkit.faults import Refused

FS_TYPE = "squashfs"


@dataclass(frozen=True)
class Usage:
    """What the store takes: bytes as du counts them, and inodes."""

    path: Path
    bytes: int
    inodes: int


class StoreFiles:
    """Paths and files of the store, for one process at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ingest = root / "ingest"
        self.index = root / "images.db"
        self._blobs, self._filesystems = root / "blobs", root / "filesystems"
        self._kernels, self._tree_caches = root / "kernels", root / "shelves"
        self._serials = itertools.count(1)
        for directory in (root, self._filesystems, self._blobs, self._tree_caches, self._kernels):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._guard = _only_one(root / "lock")

    def close(self) -> None:
        """Release the store to other processes."""
        os.close(self._guard)

    def clear_ingest(self) -> None:
        """Remove the unfinished work of a killed run."""
        shutil.rmtree(self.ingest, ignore_errors=True)
        self.ingest.mkdir(mode=0o700)

    def blob_path(self, digest: str) -> Path:
        """The path of a compressed layer, whether it is there or not."""
        algorithm, _, value = digest.partition(":")
        return self._blobs / algorithm / value

    def fs_path(self, chain_id: str) -> Path:
        """The path of a filesystem, whether it is there or not."""
        return self._filesystems / f"{chain_id.partition(':')[2]}.{FS_TYPE}"

    def kernel_path(self, chain_id: str) -> Path:
        """The folder of a kernel image's files, whether it is there or not."""
        return self._kernels / chain_id.partition(":")[2]

    def keep_kernels(self, chain_ids: Set[str]) -> None:
        """Remove the folders of all other chains; each is renamed first, so that none is seen half gone."""
        kept = {self.kernel_path(chain_id) for chain_id in chain_ids}
        for folder in set(self._kernels.iterdir()) - kept:
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
        """The path of a filesystem's tree cache, whether it is there or not."""
        return self._tree_caches / chain_id.partition(":")[2]

    def layer_cache_path(self, digest: str) -> Path:
        """The path of the list of a layer's entries, whether it is there or not."""
        return self._tree_caches / f"{digest.partition(':')[2]}.entries"

    @contextmanager
    def work_file(self, stem: str) -> Iterator[Path]:
        """A path for an unfinished file; whatever is there when the body ends is removed."""
        path = self._work_path(stem)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _work_path(self, stem: str) -> Path:
        # One step, so that no two threads get the same number.
        return self.ingest / f"{stem}.{next(self._serials)}"

    def put(self, work: Path, final: Path) -> None:
        """Give a file whose bytes are synced its final name."""
        if not final.parent.is_dir():
            final.parent.mkdir(mode=0o700, exist_ok=True)
            sync_directory(final.parent.parent)
        work.rename(final)
        sync_directory(final.parent)

    def link(self, equals: Iterable[FilesystemRow], chain_id: str, work: Path) -> str | None:
        """Give one of several equal filesystems the further name ``work``; its digest, None: none is here.

        A file that ``chain_id`` has already is not taken: it is to be replaced.
        """
        replaced = self.fs_path(chain_id)
        for row in equals:
            path = self.fs_path(row.chain_id)
            # It may be on its way out; under its new name it stays.
            with suppress(OSError):
                if path.stat().st_size != row.bytes or (replaced.exists() and replaced.samefile(path)):
                    continue
                work.hardlink_to(path)
                return row.digest
        return None

    def named(self) -> list[Path]:
        """Every blob, filesystem, tree cache, and list of a layer's entries."""
        return [*self._filesystems.iterdir(), *self._blobs.glob("*/*"), *self._tree_caches.iterdir()]

    def usage(self) -> Usage:
        """What the store takes now."""
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
    """Write a directory's names to the disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
