"""Reads layers and builds filesystems, both in workers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from images.bounds.cancel import CancelToken
from images.bounds.fields import FieldReader
from images.image_settings import ImageSettings
from images.layer.layers import Cost, file_chunks
from images.rootfs.eager import EagerFilesystem
from images.rootfs.filewriter import Written
from images.rootfs.squash import Squashfs
from images.rootfs.stream import ACCOUNT_FILES
from images.worker import jobs
from images.worker.answer_frames import JobOutcome
from images.worker.planning import EMPTY, LARGEST_INT64, StoredPlan, read_cost
from images.worker.workers import LayerWorkers

_HASH_BYTES = 32
# Limit of files open at once in a planning worker.
_MOST_FILES = 16


class BuiltFilesystem(NamedTuple):
    """A finished filesystem image. digest: of its file; accounts: contents of StoredPlan.accounts."""

    digest: str
    accounts: Mapping[str, bytes | None]


def read_layer(
    workers: LayerWorkers,
    chunks: Iterator[bytes],
    layer: tuple[str, int],
    diff_id: str,
    listed: BinaryIO,
    token: CancelToken,
    begun: EagerFilesystem | None = None,
) -> Cost:
    """Read a layer in a worker, as layer.layers.read_layer(); returns the layer's cost.

    layer: digest and size, compressed; listed: an empty file, for the list of entries; begun: receives the
    layer's files.
    """
    limits = workers.limits
    data = len(ACCOUNT_FILES) * limits.account_file_bytes if begun is not None else 0
    # Packed entries are smaller than entries in a tree.
    outcome = JobOutcome([listed], limits.memory_bytes, data)

    def decode(answer: FieldReader) -> tuple[Cost, Written | None]:
        cost = read_cost(answer)
        return cost, None if begun is None else _written(answer, limits.account_file_bytes)

    sink = None if begun is None else begun.squashfs.sink
    digest, size = layer
    cost, written = workers.run(jobs.READ, (diff_id, size, digest), token, outcome, decode, chunks, (), sink)
    if begun is not None:
        begun.written = written
    return cost


def convert(
    blobs: Mapping[int, Path],
    plan: StoredPlan,
    out: Path,
    settings: ImageSettings,
    workers: LayerWorkers,
    token: CancelToken,
    moved: Callable[[int], None],
) -> BuiltFilesystem:
    """Build ``out`` from the layers in the plan; the same plan gives the same bytes.

    moved: called with the number of copied file bytes, plan.file_bytes in all. Raises Unpackable, Exhausted
    (disk, limits), Cancelled; then ``out`` is removed.
    """
    with closing(Squashfs(out, plan.file_bytes, settings, workers)) as squashfs:
        accounts = _write_filesystem(workers, squashfs, blobs, plan, plan.order, {}, token, moved)
    return BuiltFilesystem(_digest(out, token), accounts)


def convert_rest(
    begun: EagerFilesystem,
    blobs: Mapping[int, Path],
    plan: StoredPlan,
    workers: LayerWorkers,
    token: CancelToken,
    moved: Callable[[int], None],
) -> BuiltFilesystem:
    """Like convert(), but completes a begun filesystem that fits the plan."""
    first, *rest = plan.order
    assert begun.written is not None
    moved(min(begun.written.bytes, plan.file_bytes))
    known = {(first, at): data for at, data in begun.written.accounts.items()}
    accounts = _write_filesystem(workers, begun.squashfs, blobs, plan, rest, known, token, moved)
    return BuiltFilesystem(_digest(begun.out, token), accounts)


def account_files(
    blobs: Mapping[int, Path], plan: StoredPlan, subject: str, workers: LayerWorkers, token: CancelToken
) -> Mapping[str, bytes | None]:
    """Contents of StoredPlan.accounts, when no filesystem is to be built."""
    if not any(layer not in (EMPTY, None) for layer in plan.accounts.values()):
        return {path: None if layer is None else b"" for path, layer in plan.accounts.items()}
    most = workers.limits.account_file_bytes
    outcome = JobOutcome(data=len(ACCOUNT_FILES) * most)
    with _opened(plan, blobs) as (numbers, files):
        arguments = (subject, numbers)
        decode = partial(_contents, most)
        return workers.run(jobs.ACCOUNTS, arguments, token, outcome, decode, (), files)


def _write_filesystem(
    workers: LayerWorkers,
    squashfs: Squashfs,
    blobs: Mapping[int, Path],
    plan: StoredPlan,
    layers: Sequence[int],
    known: Mapping[tuple[int, int], bytes],
    token: CancelToken,
    moved: Callable[[int], None],
) -> Mapping[str, bytes | None]:
    most = workers.limits.account_file_bytes
    outcome = JobOutcome((), 0, len(ACCOUNT_FILES) * most, moved, plan.file_bytes)

    def decode(answer: FieldReader) -> tuple[Mapping[str, bytes | None], bool]:
        return _contents(most, answer), answer.flag()

    with _opened(plan, blobs) as (numbers, files):
        sink, rest = squashfs.sink, (tuple(layers), numbers, known)
        if plan.writer is not None and len(files) <= _MOST_FILES:
            found, whole = plan.writer.write(rest, [sink, *files], outcome, decode, token)
        else:
            arguments = (squashfs.out.name, *rest)
            found, whole = workers.run(jobs.WRITE, arguments, token, outcome, decode, (), files, sink)
    squashfs.finish(whole, token)
    return found


@contextmanager
def _opened(plan: StoredPlan, blobs: Mapping[int, Path]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """The numbers of layers, and read-only handles of the plan and of these layers."""
    with ExitStack() as stack:
        paths = [Path(f"/proc/self/fd/{plan.stored.fileno()}"), *blobs.values()]
        files = [stack.enter_context(path.open("rb")) for path in paths]
        yield tuple(blobs), [file.fileno() for file in files]


def _written(answer: FieldReader, most: int) -> Written:
    useful, digest, size = answer.flag(), answer.data(_HASH_BYTES, _HASH_BYTES), answer.number(LARGEST_INT64)
    count = answer.number(len(ACCOUNT_FILES))
    return Written(
        useful, digest, {answer.number(LARGEST_INT64): answer.data(most) for _ in range(count)}, size
    )


def _contents(most: int, answer: FieldReader) -> dict[str, bytes | None]:
    """Contents of account files, of at most ``most`` bytes each."""
    found: dict[str, bytes | None] = {}
    for path in ACCOUNT_FILES:
        changed, there, data = answer.flag(), answer.flag(), answer.data(most)
        if changed:
            found[path] = data if there else None
    return found


def _digest(path: Path, token: CancelToken) -> str:
    """The file's digest, read again (from memory, mostly) because tar2sqfs writes out of order."""
    running = hashlib.sha256()
    for chunk in file_chunks(path, token):
        running.update(chunk)
    return f"sha256:{running.hexdigest()}"
