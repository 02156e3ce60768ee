"""Layers read, and filesystems built of them, in workers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from cri.images.bounds.cancel import CancelToken
from cri.images.layer.layers import EntryList, LayerIndex, file_chunks
from cri.images.layer.packed import PackedRecords
from cri.images.rootfs.begun import BegunFilesystem
from cri.images.rootfs.convert import Accounts, write_stream
from cri.images.rootfs.filewriter import Written
from cri.images.rootfs.plan import FilesystemPlan
from cri.images.rootfs.squash import Squashfs
from cri.images.rootfs.stream import Contents, StreamPipe
from cri.images.settings import ImageSettings
from cri.images.worker import jobs
from cri.images.worker.workers import LayerWorkers


class BuiltFilesystem(NamedTuple):
    """A finished filesystem image. digest: of its file; accounts: contents of FilesystemPlan.accounts."""

    digest: str
    accounts: Mapping[str, bytes | None]


def read_layer(
    workers: LayerWorkers,
    chunks: Iterator[bytes],
    size: int,
    diff_id: str,
    token: CancelToken,
    begun: BegunFilesystem | None = None,
) -> LayerIndex:
    """See layer.layers.read_layer(), which runs in a worker; begun: is given the layer's files."""
    sink = None if begun is None else begun.squashfs.sink
    state, plain_bytes, names, memory, written = workers.run(jobs.READ, (diff_id, size), token, chunks, sink)
    if begun is not None:
        begun.written = Written(*written)
    return LayerIndex(EntryList(PackedRecords.of(state)), plain_bytes, names, memory)


def convert(
    blobs: Sequence[Path],
    plan: FilesystemPlan,
    out: Path,
    settings: ImageSettings,
    workers: LayerWorkers,
    token: CancelToken,
    moved: Callable[[int], None],
) -> BuiltFilesystem:
    """Build ``out`` from an image's layers, lowest first; the same plan gives the same bytes.

    moved: is told of the bytes of files that were copied, plan.file_bytes in all.
    Raises Unpackable, Exhausted (disk, limits), Cancelled; then nothing is left of out.
    """
    with closing(Squashfs(out, settings, workers)) as squashfs:
        accounts = _write(workers, squashfs, blobs, plan, plan.order, {}, token, moved)
    return BuiltFilesystem(_digest(out, token), accounts)


def convert_rest(
    begun: BegunFilesystem,
    blobs: Sequence[Path],
    plan: FilesystemPlan,
    workers: LayerWorkers,
    token: CancelToken,
    moved: Callable[[int], None],
) -> BuiltFilesystem:
    """As convert(), going on with what fits the plan."""
    first, *rest = plan.order
    assert begun.written is not None
    moved(begun.written.bytes)
    known = {(first, at): data for at, data in begun.written.accounts.items()}
    accounts = _write(workers, begun.squashfs, blobs, plan, rest, known, token, moved)
    return BuiltFilesystem(_digest(begun.out, token), accounts)


def account_files(
    blobs: Sequence[Path], plan: FilesystemPlan, subject: str, workers: LayerWorkers, token: CancelToken
) -> Mapping[str, bytes | None]:
    """Contents of FilesystemPlan.accounts, when no filesystem is to be built."""
    if not any(node is not None and node.content is not None for node in plan.accounts.values()):
        return {path: None if node is None else b"" for path, node in plan.accounts.items()}
    layers = _read_for_accounts(plan, {})
    found: Mapping[str, bytes | None] = workers.run(
        jobs.ACCOUNTS, (subject, layers, plan.stated_accounts()), token, files=[blobs[at] for at in layers]
    )
    return found


def _write(
    workers: LayerWorkers,
    squashfs: Squashfs,
    blobs: Sequence[Path],
    plan: FilesystemPlan,
    layers: Sequence[int],
    known: Mapping[tuple[int, int], bytes],
    token: CancelToken,
    moved: Callable[[int], None],
) -> Mapping[str, bytes | None]:
    accounts = Accounts(plan.accounts, known)
    if not layers and accounts.are_known():
        # Nothing is left to be inflated.
        return _write_here(squashfs, plan, accounts, token)
    # A blob that is not read may not be here.
    needed = sorted({*layers, *_read_for_accounts(plan, known)})
    files = [blobs[at] for at in needed]
    arguments = (squashfs.out.name, needed, plan.stated(layers), known)
    found: Mapping[str, bytes | None]
    found, whole = workers.run(jobs.WRITE, arguments, token, sink=squashfs.sink, files=files, moved=moved)
    squashfs.finish(whole, token)
    return found


def _read_for_accounts(plan: FilesystemPlan, known: Mapping[tuple[int, int], bytes]) -> list[int]:
    """The layers that account files are in, those that are known left out."""
    contents = [
        node.content for node in plan.accounts.values() if node is not None and node.content is not None
    ]
    return sorted({content.layer for content in contents if content[:2] not in known})


def _write_here(
    squashfs: Squashfs, plan: FilesystemPlan, accounts: Accounts, token: CancelToken
) -> Mapping[str, bytes | None]:
    contents = Contents(plan.bare, {}, plan.links)
    out = StreamPipe(squashfs.sink)
    with token.unblocking(squashfs.kill):
        whole = out.put(lambda sink: write_stream({}, contents, accounts, "", _nothing, sink, token))
        whole = out.flush() and whole
    squashfs.finish(whole, token)
    return accounts.contents({}, "")


def _nothing(_: int) -> None:
    """No bytes of files are moved."""


def _digest(path: Path, token: CancelToken) -> str:
    """The file's digest, read again (from memory, mostly) because tar2sqfs writes out of order."""
    running = hashlib.sha256()
    for chunk in file_chunks(path, token):
        running.update(chunk)
    return f"sha256:{running.hexdigest()}"
