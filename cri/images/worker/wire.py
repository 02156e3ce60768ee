"""What goes between the daemon and its workers: values, each after its length, and faults by name."""

from __future__ import annotations

import marshal
import os
from collections.abc import Iterator
from typing import Any

from cri.images import errors
from cri.images.layer.packed import MARSHAL
from daemonkit import faults

_LENGTH = 8
_PIECE = 1 << 20
_FAULTS: dict[str, type[faults.Fault]] = {
    kind.__name__: kind
    for kind in (
        errors.Corrupt,
        errors.Misdelivered,
        errors.Unpackable,
        errors.Oversized,
        errors.DiskFull,
        faults.Refused,
        faults.Broken,
        faults.Exhausted,
    )
}


class Ended(Exception):
    """The other side has gone before a value was whole."""


def put(handle: int, value: Any) -> None:
    """Write a value; raises BrokenPipeError."""
    data = marshal.dumps(value, MARSHAL)
    write(handle, len(data).to_bytes(_LENGTH, "little"))
    write(handle, data)


def write(handle: int, data: bytes) -> None:
    """Write all of some bytes; raises BrokenPipeError."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def take(handle: int) -> Any:
    """The next value; raises Ended."""
    return marshal.loads(_exactly(handle, int.from_bytes(_exactly(handle, _LENGTH), "little")))


def chunks(handle: int, size: int) -> Iterator[bytes]:
    """What comes after the values, to its end."""
    while chunk := os.read(handle, size):
        yield chunk


def fault_fields(error: Exception) -> tuple[str, ...]:
    """A fault as a value."""
    if isinstance(error, faults.Fault) and type(error).__name__ in _FAULTS:
        return (type(error).__name__, error.operation, error.subject, error.cause, error.hint)
    if isinstance(error, OSError) and error.errno is not None:
        return ("OSError", str(error.errno), error.strerror or "", str(error.filename or ""))
    return (type(error).__name__, str(error))


def fault(kind: str, *fields: str) -> Exception:
    """What fault_fields() was made of; RuntimeError for what nobody expects."""
    if kind in _FAULTS:
        return _FAULTS[kind](*fields)
    if kind == "OSError":
        number, text, name = fields
        return OSError(int(number), text, name or None)
    return RuntimeError(f"a worker failed with {kind}: {' '.join(fields)}")


def _exactly(handle: int, size: int) -> bytes:
    pieces: list[bytes] = []
    while size:
        piece = os.read(handle, min(size, _PIECE))
        if not piece:
            raise Ended
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
