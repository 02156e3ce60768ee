"""Extracts the files of a kernel image from its layers into a folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Broken
from images.bounds.cancel import CancelToken
from images.kernels.kernel_plan import CONFIG, FilePlace, KernelPlan, LayerFile, opened
from images.store.image_files import sync_directory
from images.worker import jobs
from images.worker.answer_frames import JobOutcome
from images.worker.workers import LayerWorkers

DIGESTS = "digests.json"
_READ = "read kernel image"


class Taken(NamedTuple):
    """A written file of the folder."""

    name: str
    digest: str
    size: int


def take_kernel(plan: KernelPlan, folder: Path, workers: LayerWorkers, token: CancelToken) -> None:
    """Write and sync each file, and their digests.

    Corrupt: a layer has changed since the plan; Refused: the kernel was not built for zones; OSError.
    """
    folder.mkdir(mode=0o700)
    checkpoint("kernel-take.begun")
    taken: list[Taken] = []
    for number, layer in enumerate(plan.layers):
        wanted = [(name, place) for name, place in plan.files.items() if place.layer == number]
        if wanted:
            wanted.sort(key=lambda one: one[1].offset)
            taken += _from_layer(layer, wanted, folder, plan, workers, token)
            checkpoint("kernel-take.layer-read")
    with _created(folder / DIGESTS) as file:
        file.write(json.dumps([list(one) for one in taken]).encode())
    sync_directory(folder)
    checkpoint("kernel-take.synced")


def taken_files(folder: Path) -> list[Taken]:
    """The files of a folder; empty if no folder exists.  ValueError, OSError: the folder is damaged."""
    try:
        rows = json.loads((folder / DIGESTS).read_bytes())
    except FileNotFoundError:
        if folder.exists():
            raise
        return []
    return [Taken(*row) for row in rows]


def _from_layer(
    layer: LayerFile,
    wanted: Sequence[tuple[str, FilePlace]],
    folder: Path,
    plan: KernelPlan,
    workers: LayerWorkers,
    token: CancelToken,
) -> list[Taken]:
    """Extract from one layer, in a worker."""
    with opened([layer], plan.subject) as (blob,), ExitStack() as stack:
        files = [_Hashed(stack.enter_context(_created(folder / name))) for name, _ in wanted]
        places = [
            (number, place.offset, place.stored, name == CONFIG)
            for number, (name, place) in enumerate(wanted)
        ]
        given = (plan.subject, layer.diff_id, places, list(plan.files))
        outcome = JobOutcome(files, max(place.stored for _, place in wanted))
        workers.run(jobs.COPY_KERNEL, given, token, outcome, lambda _: None, (), [blob.fileno()])
    for file, (name, place) in zip(files, wanted, strict=True):
        if file.size != place.stored:
            raise Broken(_READ, plan.subject, f"{file.size} bytes of {name} came instead of {place.stored}")
    return [
        Taken(name, f"sha256:{file.running.hexdigest()}", file.size)
        for file, (name, _) in zip(files, wanted, strict=True)
    ]


class _Hashed:
    """A file that counts and hashes written data."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.running = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Write some bytes."""
        self.running.update(data)
        self.size += len(data)
        return self._file.write(data)


@contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    """A new file of mode 0400, synced after the body: protectd refuses files writable by others."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
