"""The bytes between the daemon and its workers.

The daemon sends its own values, marshalled, and open files. A worker has read hostile bytes; its output is
therefore hostile too: frames of a kind and a length, files that the daemon copies unparsed, and answers,
whose fields are decoded singly, each within its bounds.
"""

from __future__ import annotations

import array
import io
import marshal
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from daemonkit import faults
from images import image_errors
from images.bounds.fields import FieldReader, FieldWriter
from images.layer.packed import MARSHAL
from images.worker.answer_frames import ANSWER, FAULT, FILES, HEAD, MOVED, Ended, exactly

_LENGTH_BYTES = 8
# Linux passes 253 at once (SCM_MAX_FD).
_TOGETHER = 128
# Messages of a fault are shorter; longer texts of a worker are cut.
_TEXT = 4096
_PIECE_BYTES = 1 << 20
_FAULTS: dict[str, type[faults.Fault]] = {
    kind.__name__: kind
    for kind in (
        image_errors.Corrupt,
        image_errors.Unpackable,
        image_errors.Oversized,
        image_errors.DiskFull,
        faults.Refused,
        faults.Broken,
        faults.Exhausted,
        faults.Invalid,
        faults.Missing,
    )
}


# To a worker.


def put_value(handle: int, value: Any, files: Sequence[int] = ()) -> None:
    """Write a value, then open files; raises BrokenPipeError, ConnectionResetError.

    files: handles; they need a socket as handle. The receiver must know their number.
    """
    data = marshal.dumps(value, MARSHAL)
    write_bytes(handle, len(data).to_bytes(_LENGTH_BYTES, "little"))
    write_bytes(handle, data)
    for start in range(0, len(files), _TOGETHER):
        with socket.socket(fileno=os.dup(handle)) as sender:
            socket.send_fds(sender, [b"f"], list(files[start : start + _TOGETHER]))


def write_bytes(handle: int, data: bytes | memoryview) -> None:
    """Write all of some bytes; raises BrokenPipeError, ConnectionResetError."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def take_value(handle: int) -> Any:
    """The daemon's next value; raises Ended."""
    return marshal.loads(exactly(handle, int.from_bytes(exactly(handle, _LENGTH_BYTES), "little")))


def take_files(handle: int, count: int) -> list[io.BufferedReader]:
    """The next open files; raises Ended."""
    found = array.array("i")
    # The type is given explicitly, because a worker may not ask for it.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(handle)) as receiver:
        while len(found) < count:
            data, handles, _, _ = socket.recv_fds(receiver, 1, _TOGETHER)
            if not data:
                raise Ended
            found.extend(handles)
    return [open(one, "rb") for one in found]


def chunks(handle: int, size: int) -> Iterator[bytes]:
    """All bytes after the values, until the end."""
    while chunk := os.read(handle, size):
        yield chunk


# From a worker.


class FileFrames(io.RawIOBase):
    """A file in a worker that writes into a file of the daemon."""

    def __init__(self, handle: int, number: int) -> None:
        """number: index among the files of this answer."""
        self._handle = handle
        self._kind = FILES[number]

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Write all data."""
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            write_bytes(self._handle, HEAD.pack(self._kind, len(piece)))
            write_bytes(self._handle, piece)
        return len(view)


def file(handle: int, number: int) -> io.BufferedWriter:
    """A buffered file of an answer; close the file before the answer."""
    return io.BufferedWriter(FileFrames(handle, number), _PIECE_BYTES)


def answer_fields(handle: int, fields: FieldWriter) -> None:
    """Give an answer; raises BrokenPipeError."""
    data = fields.done()
    write_bytes(handle, HEAD.pack(ANSWER, len(data)) + data)


def moved(handle: int, size: int) -> None:
    """Report more copied bytes; raises BrokenPipeError."""
    write_bytes(handle, HEAD.pack(MOVED, 8) + size.to_bytes(8, "little"))


def complain(handle: int, error: Exception) -> None:
    """Give a fault instead of an answer; raises BrokenPipeError."""
    kind, texts = type(error).__name__, [str(error), "", "", ""]
    if isinstance(error, faults.Fault) and kind in _FAULTS:
        texts = [error.operation, error.subject, error.cause, error.hint]
    elif isinstance(error, OSError) and error.errno is not None:
        kind, texts = "OSError", [str(error.errno), error.strerror or "", "", ""]
    fields = FieldWriter()
    for text in (kind, *texts):
        fields.data(text.encode("utf-8", "replace")[:_TEXT])
    data = fields.done()
    write_bytes(handle, HEAD.pack(FAULT, len(data)) + data)


def fault(data: bytes) -> Exception:
    """The error of complain(); Broken for an unexpected error; raises Malformed."""
    said = FieldReader(data)
    kind, *texts = (said.printable(_TEXT) for _ in range(5))
    said.end()
    if kind in _FAULTS:
        return _FAULTS[kind](*texts)
    if kind == "OSError" and texts[0].isascii() and texts[0].isdecimal() and len(texts[0]) < 5:
        return OSError(int(texts[0]), texts[1])
    return faults.Broken("read image", "", f"a worker failed with {kind}: {texts[0]}")
