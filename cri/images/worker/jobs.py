"""What a worker does: read a layer, write files of layers into a filesystem, read account files.

A job is a name and its arguments. Its handles: the pipe that they and a layer's bytes come from, the pipe for
what comes of it, and for some the pipe into a tar2sqfs, and files of layers.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cri.images.bounds.limits import ImageLimits
from cri.images.errors import oversized
from cri.images.layer.compression import CHUNK
from cri.images.layer.layers import read_layer
from cri.images.rootfs.convert import Accounts, write_stream
from cri.images.rootfs.filewriter import FileWriter
from cri.images.rootfs.stream import StreamPipe, nodes, stated_contents
from cri.images.worker import wire
from daemonkit.faults import Broken

READ, WRITE, ACCOUNTS = "unpack layer", "build filesystem image", "read account files"
"""The jobs, as messages have them."""
# What a worker takes beside what the limits of images allow: the program, and windows of zstd.
OWN_BYTES = 512 << 20
# Bytes that are copied between two messages about them.
_TOLD = 4 << 20


def carry_out(source: int, target: int, *more: int) -> None:
    """The worker's life; a fault is what comes of it, too. more: the pipe of a tar2sqfs, files of layers."""
    name, most, count, arguments = wire.take(source)
    limits = ImageLimits(**most)
    _limit(limits)
    sink, files = more[: len(more) - count], more[len(more) - count :]
    out = StreamPipe(*sink) if sink else None
    try:
        try:
            result = _JOBS[name](source, target, limits, out, files, *arguments)
        except MemoryError:
            cause = f"a process of {_address_space(limits)} bytes is too small to read it"
            raise oversized(name, str(arguments[0]), cause, "memory_bytes") from None
        wire.put(target, ("done", result))
    except BrokenPipeError:
        # Whoever asked has gone.
        return
    except Exception as error:
        wire.put(target, ("fault", wire.fault_fields(error)))


def refuse(target: int, error: OSError) -> None:
    """The end of a worker that could not be confined, and so reads nothing."""
    with suppress(BrokenPipeError):
        wire.put(target, ("fault", wire.fault_fields(Broken("confine worker", "", str(error)))))


def _address_space(limits: ImageLimits) -> int:
    return limits.memory_bytes + OWN_BYTES


def _limit(limits: ImageLimits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_address_space(limits),) * 2)
    if limits.cpu_seconds:
        # The soft limit kills it with a signal of its own; the hard one is for what might catch that.
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 5))


def _read(
    source: int,
    target: int,
    limits: ImageLimits,
    out: StreamPipe | None,
    files: Sequence[int],
    diff_id: str,
    size: int,
) -> tuple[Any, ...]:
    """A layer's index, and what was written of its files."""
    writer = FileWriter(diff_id, limits, out) if out is not None else None
    reader = writer.take if writer is not None else None
    index = read_layer(wire.chunks(source, CHUNK), size, diff_id, limits, reader)
    written = None
    if writer is not None:
        written = tuple(writer.written())
    return (index.entries.state(), *index[1:4], written)


def _write(
    source: int,
    target: int,
    limits: ImageLimits,
    out: StreamPipe | None,
    files: Sequence[int],
    subject: str,
    layers: Sequence[int],
    plan: Sequence[Any],
    known: Mapping[tuple[int, int], bytes],
) -> tuple[dict[str, bytes | None], bool]:
    """The rest of a filesystem's stream; contents of account files, and whether the tool read all of it."""
    assert out is not None
    contents, found = stated_contents(plan)
    accounts = Accounts(found, known)
    blobs = dict(zip(layers, files, strict=True))
    moved = _Moved(target)
    write = partial(write_stream, blobs, contents, accounts, subject, moved.add)
    whole = out.put(write) and out.flush()
    moved.tell()
    return accounts.contents(blobs, subject), whole


def _account_files(
    source: int,
    target: int,
    limits: ImageLimits,
    out: StreamPipe | None,
    files: Sequence[int],
    subject: str,
    layers: Sequence[int],
    accounts: Mapping[str, Any],
) -> dict[str, bytes | None]:
    """Contents of account files."""
    return Accounts(nodes(accounts), {}).contents(dict(zip(layers, files, strict=True)), subject)


class _Moved:
    """Tells how many bytes were copied, now and then."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._bytes = 0

    def add(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= _TOLD:
            self.tell()

    def tell(self) -> None:
        # It is nobody's loss but that of who has gone.
        with suppress(BrokenPipeError):
            wire.put(self._target, ("moved", self._bytes))
        self._bytes = 0


_JOBS: Mapping[str, Callable[..., Any]] = {
    READ: _read,
    WRITE: _write,
    ACCOUNTS: _account_files,
}
