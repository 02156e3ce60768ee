"""Extracts the files of a kernel image from its layers into a folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cri.images.bounds.cancel import CancelToken
from cri.images.errors import Corrupt
from cri.images.kernels.plan import KernelPlan, LayerFile, chunks
from cri.images.layer import compression
from cri.images.layer.inode import Content
from cri.images.layer.stream import PlainStream
from cri.images.store.files import sync_directory
from daemonkit.checkpoints import checkpoint

DIGESTS = "digests.json"
_READ = "read kernel image"


class Taken(NamedTuple):
    """A file in the folder, as it was written."""

    name: str
    digest: str
    size: int


def take(plan: KernelPlan, folder: Path, token: CancelToken) -> None:
    """Write and sync each file, and their digests.  Corrupt: a layer has changed since the plan; OSError."""
    folder.mkdir(mode=0o700)
    checkpoint("kernel-take.begun")
    taken: list[Taken] = []
    for number, layer in enumerate(plan.layers):
        wanted = [(name, content) for name, content in plan.files.items() if content.layer == number]
        if wanted:
            wanted.sort(key=lambda one: one[1].offset)
            taken += _from_layer(layer, wanted, folder, plan.subject, token)
            checkpoint("kernel-take.layer-read")
    _write(folder / DIGESTS, [json.dumps([list(one) for one in taken]).encode()])
    sync_directory(folder)
    checkpoint("kernel-take.synced")


def taken_files(folder: Path) -> list[Taken]:
    """The files of a folder; none when there is no folder.  ValueError, OSError: it is damaged."""
    try:
        rows = json.loads((folder / DIGESTS).read_bytes())
    except FileNotFoundError:
        if folder.exists():
            raise
        return []
    return [Taken(*row) for row in rows]


def _from_layer(
    layer: LayerFile, wanted: Sequence[tuple[str, Content]], folder: Path, subject: str, token: CancelToken
) -> Iterator[Taken]:
    """Extract from one layer, which is verified again: it may have changed since the plan was made."""
    algorithm, _, digest = layer.diff_id.partition(":")
    whole = hashlib.new(algorithm)
    plain = token.passing(compression.plain(chunks(layer.path, subject, token), subject))
    stream = PlainStream(_hashed(plain, whole), subject)
    for name, content in wanted:
        stream.skip(content.offset - stream.offset)
        mine = hashlib.sha256()
        _write(folder / name, _hashed(stream.views(content.stored), mine))
        yield Taken(name, f"sha256:{mine.hexdigest()}", content.stored)
    stream.drain()
    if whole.hexdigest() != digest:
        cause = f"the layer {layer.path.name} is damaged"
        raise Corrupt(_READ, subject, cause, "remove it, and pull it again")


def _hashed(chunks: Iterable[bytes | memoryview], running: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        running.update(chunk)
        yield chunk  # type: ignore[misc]  # who takes it reads it as bytes


def _write(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file of mode 0400: protectd refuses what others may write."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400), "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
