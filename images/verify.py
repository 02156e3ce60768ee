"""Verifies the stored files of an image by their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from images.bounds.cancel import CancelToken
from images.bounds.digests import matches
from images.kernels.take import Taken, taken_files
from images.layer.layers import file_chunks
from images.pull.repair import Damage
from images.store.catalogue import StoredImage
from images.store.db import FilesystemRow, ImageRow
from images.store.store import ImageStore


@dataclass(frozen=True)
class Verification:
    """faults: the image's faults, empty if sound; read: bytes; damage: the repairable parts.

    kernel: whether the files extracted for zones to boot are damaged.
    """

    faults: tuple[str, ...]
    read: int
    damage: Damage = Damage()
    kernel: bool = False


def verify(store: ImageStore, image: StoredImage, token: CancelToken) -> Verification:
    """Read and check every file of an image; Missing if the image is gone.

    New containers cannot use filesystems found damaged here.
    """
    while True:
        row, stack = store.stored(image)
        with store.leasing([one.chain_id for one in stack], [digest for digest, _ in row.layers]):
            # Before the lease the image may have been removed, or rebuilt from other parts.
            if store.stored(image) == (row, stack):
                return _verified(store, row, stack, token)


def _verified(
    store: ImageStore, row: ImageRow, stack: Sequence[FilesystemRow], token: CancelToken
) -> Verification:
    """Verify a leased image."""
    check = _Check(token)
    if not matches(row.config, row.id):
        check.faults.append("the configuration has another digest")
    if not matches(row.manifest, row.manifest_digest):
        check.faults.append("the manifest has another digest")
    documents = bool(check.faults)
    blob_path = store.files.blob_path
    layers = [d for d, size in row.layers if not check.file(f"layer {d}", blob_path(d), d, size)]
    filesystems = _filesystems(store, stack, check)
    # Filesystems without a digest cannot be checked, and stay usable.
    if damaged := [one for one in filesystems if one.digest]:
        store.mark_damaged(damaged)
    kernel = _kernel(store.files.kernel_path(row.chain_id), check)
    read = check.read + len(row.config) + len(row.manifest)
    damage = Damage(documents, tuple(layers), tuple(filesystems))
    return Verification(tuple(check.faults), read, damage, not kernel)


def _filesystems(store: ImageStore, stack: Sequence[FilesystemRow], check: _Check) -> list[FilesystemRow]:
    """The filesystems to rebuild."""
    damaged = []
    for number, one in enumerate(stack, 1):
        what = "the filesystem image" if len(stack) == 1 else f"filesystem image {number} of {len(stack)}"
        if not check.file(what, store.files.fs_path(one.chain_id), one.digest, one.bytes):
            damaged.append(one)
        elif one.damaged:
            check.faults.append(f"{what} was damaged when it was read before; it is rebuilt at its next use")
            damaged.append(one)
    return damaged


def _kernel(folder: Path, check: _Check) -> bool:
    """Whether the files extracted from a kernel image are sound."""
    taken, fault = _taken(folder)
    if fault:
        check.faults.append(fault)
    sound = [check.file(f"the kernel's {one.name}", folder / one.name, one.digest, one.size) for one in taken]
    return not fault and all(sound)


class _Check:
    """The findings until now: faults, and the bytes read."""

    def __init__(self, token: CancelToken) -> None:
        self._token = token
        self.faults: list[str] = []
        self.read = 0

    def file(self, what: str, path: Path, digest: str, size: int) -> bool:
        """Whether a file is sound; what: the file's name in the fault."""
        fault, read = _file(path, digest, size, self._token)
        self.read += read
        if fault:
            self.faults.append(f"{what} {fault}")
        return not fault


def _taken(folder: Path) -> tuple[list[Taken], str]:
    """The files extracted from a kernel image, and the fault of their list ("": none)."""
    try:
        return taken_files(folder), ""
    except (OSError, ValueError, TypeError) as error:
        return [], f"the list of what was taken out of it cannot be read: {error}"


def _file(path: Path, digest: str, size: int, token: CancelToken) -> tuple[str, int]:
    """The fault of a file ("": none), and the number of bytes read."""
    algorithm, _, wanted = digest.partition(":")
    running, read = hashlib.new(algorithm), 0
    try:
        for chunk in file_chunks(path, token):
            running.update(chunk)
            read += len(chunk)
    except OSError as error:
        return f"cannot be read: {error.strerror}", read
    if read != size:
        return f"has {read} bytes instead of {size}", read
    return ("" if running.hexdigest() == wanted else "has another digest"), read
