"""Checks what is stored of an image against its digests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cri.images.concurrency import CancelToken
from cri.images.digests import matches
from cri.images.kernels.take import Taken, taken_files
from cri.images.layer.layers import file_chunks
from cri.images.store.catalogue import StoredImage
from cri.images.store.store import ImageStore


@dataclass(frozen=True)
class Verification:
    """faults: what is wrong with the image, nothing when empty; read: bytes."""

    faults: tuple[str, ...]
    read: int


def verify(store: ImageStore, image: StoredImage, token: CancelToken) -> Verification:
    """Read and check every file of an image; Missing when it was removed meanwhile."""
    row, stack = store.stored(image)
    with store.leasing([one.chain_id for one in stack], [digest for digest, _ in row.layers]):
        faults: list[str] = []
        if not matches(row.config, row.id):
            faults.append("the configuration has another digest")
        if not matches(row.manifest, row.manifest_digest):
            faults.append("the manifest has another digest")
        read = len(row.config) + len(row.manifest)
        files = [(f"layer {d}", store.files.blob_path(d), d, size) for d, size in row.layers]
        for number, (path, one) in enumerate(zip(image.stack, stack, strict=True), 1):
            what = "the filesystem image" if len(stack) == 1 else f"filesystem image {number} of {len(stack)}"
            files.append((what, path, one.digest, one.bytes))
        folder = store.files.kernel_path(row.chain_id)
        taken, fault = _taken(folder)
        if fault:
            faults.append(fault)
        files += [(f"the kernel's {one.name}", folder / one.name, one.digest, one.size) for one in taken]
        for what, path, digest, size in files:
            fault, amount = _file(path, digest, size, token)
            read += amount
            if fault:
                faults.append(f"{what} {fault}")
    return Verification(tuple(faults), read)


def _taken(folder: Path) -> tuple[list[Taken], str]:
    """What was taken out of a kernel image, and what is wrong with the list of that ("": nothing)."""
    try:
        return taken_files(folder), ""
    except (OSError, ValueError, TypeError) as error:
        return [], f"the list of what was taken out of it cannot be read: {error}"


def _file(path: Path, digest: str, size: int, token: CancelToken) -> tuple[str, int]:
    """What is wrong with a file ("": nothing), and how much of it was read."""
    algorithm, _, wanted = digest.partition(":")
    if not wanted:
        return "cannot be checked: an earlier version made it, and kept no digest", 0
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
