"""The jobs of a worker: read a layer, plan filesystems, write a filesystem, read documents, extract a kernel.

A job is a name and its arguments. Handles of a job: the pipe or socket with the arguments, open files and a
layer's bytes; the pipe for results; for some jobs the pipe into a tar2sqfs; and open files.
"""

from __future__ import annotations

import ctypes
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO, NamedTuple

from daemonkit.faults import Broken
from images.bounds.fields import FieldWriter
from images.bounds.limits import ImageLimits
from images.image_errors import oversized
from images.layer import layer_cache
from images.layer.compression import CHUNK_BYTES
from images.layer.layers import read_layer
from images.registry import reading
from images.registry.facts import pack_config, pack_document, pack_image
from images.registry.manifests import Platform
from images.rootfs.convert import Accounts
from images.rootfs.filewriter import FileWriter
from images.rootfs.stream import StreamPipe, load_contents
from images.worker import wire
from images.worker.answer_frames import Ended
from images.worker.kernel import kernel_files as kernels
from images.worker.planner import Planning
from images.worker.writer import account_fields, write_files

READ, PLAN, WRITE, ACCOUNTS, FIND_KERNEL, COPY_KERNEL = (
    "unpack layer",
    "plan filesystems",
    "build filesystem image",
    "read account files",
    "find kernel in image",
    "take kernel out of image",
)
DOCUMENT, CONFIG, IMAGE = "read manifest", "read configuration", "read stored documents"
CONVERSE = "talk to registry"
"""The names of jobs in messages."""
# Memory of a worker beyond the limits of images: the program, and windows of zstd.
OWN_BYTES = 512 << 20
# The program, and a stack for each answer.
CONVERSATION_BYTES = 512 << 20
_M_ARENA_MAX = -8


class _Handles(NamedTuple):
    """source, target: to take requests from, and to answer to; out: into a tar2sqfs; files: to read."""

    source: int
    target: int
    out: StreamPipe | None
    files: Sequence[BinaryIO]


def carry_out(source: int, target: int, *more: int) -> None:
    """The worker's main function; a fault is sent as the result. more: the pipe of a tar2sqfs, and files."""
    name, most, count, arguments = wire.take_value(source)
    limits = ImageLimits(**most)
    _limit(limits, _address_space(limits))
    sink, files = more[: len(more) - count], [open(one, "rb") for one in more[len(more) - count :]]
    handles = _Handles(source, target, StreamPipe(*sink) if sink else None, files)
    try:
        try:
            _JOBS[name](handles, limits, *arguments)
        except MemoryError:
            cause = f"a process of {_address_space(limits)} bytes is too small to read it"
            raise oversized(name, str(arguments[0]), cause, "memory_bytes") from None
    except (BrokenPipeError, ConnectionResetError, Ended):
        # The daemon's side has gone.
        return
    except Exception as error:
        with suppress(BrokenPipeError):
            wire.complain(target, error)


def load_modules() -> None:
    """Import all code for registries; a confined process could not import."""
    from images.registry.conversation import preload

    preload.preload_modules()


def prepared(source: int, target: int, control: int) -> Callable[[], None]:
    """The main function of a worker that talks to registries. Call this function first, confine the worker,
    then call the result.

    Reads only the daemon's briefing, and certificates of the host's administrator.
    """
    from images.registry.conversation.serve import PullServer

    _, most, _, (_, told) = wire.take_value(source)
    limits, server, libc = ImageLimits(**most), PullServer(told), ctypes.CDLL(None)

    def life() -> None:
        # Each thread would have an arena of 128 MiB of address space.
        libc.mallopt(_M_ARENA_MAX, 1)
        _limit(limits, CONVERSATION_BYTES)
        with socket.socket(fileno=control) as requests:
            server.run(requests)

    return life


def refuse(target: int, error: OSError) -> None:
    """Report that the worker could not be confined; the worker then reads nothing."""
    with suppress(BrokenPipeError):
        wire.complain(target, Broken("confine worker", "", str(error)))


def _address_space(limits: ImageLimits) -> int:
    return limits.memory_bytes + OWN_BYTES


def _limit(limits: ImageLimits, address_space: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (address_space,) * 2)
    if limits.cpu_seconds:
        # The soft limit kills with SIGXCPU; the hard limit is for a process that catches SIGXCPU.
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 5))


def _read_layer(handles: _Handles, limits: ImageLimits, diff_id: str, size: int, digest: str) -> None:
    """List a layer, and write its files."""
    writer = FileWriter(diff_id, limits, handles.out) if handles.out is not None else None
    reader = writer.take if writer is not None else None
    index = read_layer(wire.chunks(handles.source, CHUNK_BYTES), size, diff_id, limits, reader)
    fields = FieldWriter()
    for number in index.cost:
        fields.number(number)
    if writer is not None:
        useful, written, accounts, moved = writer.written()
        fields.number(useful).data(written).number(moved).number(len(accounts))
        for offset, data in accounts.items():
            fields.number(offset).data(data)
    with wire.file(handles.target, 0) as listed:
        layer_cache.write_index(listed, digest, diff_id, index)
    wire.answer_fields(handles.target, fields)


def _plan(handles: _Handles, limits: ImageLimits, subject: str) -> None:
    """Plan the filesystems of one image, request by request."""
    planning = Planning(subject, limits)
    while True:
        request, arguments, count = wire.take_value(handles.source)
        files = wire.take_files(handles.source, count)
        wire.answer_fields(handles.target, planning.requests[request](handles.target, files, *arguments))
        for file in files:
            file.close()


def _write_filesystem(
    handles: _Handles,
    limits: ImageLimits,
    subject: str,
    layers: Sequence[int],
    numbers: Sequence[int],
    known: Mapping[tuple[int, int], bytes],
) -> None:
    """See writer.write_files()."""
    assert handles.out is not None
    plan, blobs = _given(handles, numbers)
    wire.answer_fields(
        handles.target, write_files(handles.target, handles.out, plan, blobs, subject, layers, known)
    )


def _account_files(handles: _Handles, limits: ImageLimits, subject: str, numbers: Sequence[int]) -> None:
    """Read account files."""
    plan, blobs = _given(handles, numbers)
    _, found = load_contents(plan)
    wire.answer_fields(handles.target, account_fields(Accounts(found, {}).contents(blobs, subject)))


def _given(handles: _Handles, numbers: Sequence[int]) -> tuple[BinaryIO, dict[int, BinaryIO]]:
    """A plan, and layers by their numbers."""
    plan, *blobs = handles.files
    return plan, dict(zip(numbers, blobs, strict=True))


def _find_kernel(
    handles: _Handles,
    limits: ImageLimits,
    subject: str,
    bounds: Mapping[str, int],
    layers: Sequence[tuple[int, str]],
    wanted: Sequence[tuple[str, int, str, bool]],
) -> None:
    """Find the files of a kernel image; bounds: lower limits for kernel images."""
    found = kernels.find_kernel_files(handles.files, replace(limits, **bounds), subject, layers, wanted)
    wire.answer_fields(handles.target, found)


def _copy_kernel(
    handles: _Handles,
    limits: ImageLimits,
    subject: str,
    diff_id: str,
    places: Sequence[tuple[int, int, int, bool]],
    extras: Sequence[str],
) -> None:
    """Copy files of a kernel image out of one layer."""
    (blob,) = handles.files
    wire.answer_fields(handles.target, kernels.copy(handles.target, blob, subject, diff_id, places, extras))


def _document(handles: _Handles, limits: ImageLimits, subject: str, said: str, wanted: Sequence[str]) -> None:
    """Facts of a manifest or an index."""
    found = reading.read_document(_fed(handles), said, subject, Platform(*wanted), limits.layers)
    wire.answer_fields(handles.target, FieldWriter().data(pack_document(found)))


def _config(handles: _Handles, limits: ImageLimits, subject: str, layers: int) -> None:
    """Facts of a configuration."""
    found = reading.read_config(_fed(handles), subject, layers)
    wire.answer_fields(handles.target, FieldWriter().data(pack_config(found)))


def _image(handles: _Handles, limits: ImageLimits, subject: str, manifest_bytes: int) -> None:
    """Facts of a manifest and the following configuration."""
    data = _fed(handles)
    found = reading.read_image(data[:manifest_bytes], data[manifest_bytes:], subject, limits.layers)
    wire.answer_fields(handles.target, FieldWriter().data(pack_image(found)))


def _fed(handles: _Handles) -> bytes:
    return b"".join(wire.chunks(handles.source, CHUNK_BYTES))


_JOBS: Mapping[str, Callable[..., None]] = {
    READ: _read_layer,
    PLAN: _plan,
    WRITE: _write_filesystem,
    ACCOUNTS: _account_files,
    FIND_KERNEL: _find_kernel,
    COPY_KERNEL: _copy_kernel,
    DOCUMENT: _document,
    CONFIG: _config,
    IMAGE: _image,
}
