"""Messages between the daemon and the worker that talks to a pull's registries.

The daemon sends requests, each with two sockets: a stream for the document's bytes, and one for a single
message, the outcome, which is there once the stream has ended. All that the worker sends is untrusted.
"""

from __future__ import annotations

import math
import socket
from typing import NamedTuple

from daemonkit import faults
from images import errors
from images.bounds.fields import FieldReader, FieldWriter, Malformed
from images.registry.claims import MAX_CLAIMS

MAX_QUESTION = 4096
_END, _FAULT = 1, 2
_MAX_TEXT, _MAX_TYPE = 3000, 255
# A fault's four texts, or claims.
_MAX_OUTCOME = 64 << 10
_CODES: tuple[type[faults.Fault], ...] = (
    faults.Broken,
    faults.Denied,
    faults.Exhausted,
    faults.Invalid,
    faults.Missing,
    faults.Refused,
    faults.TooLate,
    faults.Unreachable,
    errors.Busy,
    errors.Corrupt,
    errors.Interrupted,
    errors.Misdelivered,
    errors.NoRanges,
    errors.Stalled,
    errors.Unconnected,
)


class Question(NamedTuple):
    """A question to one host of a pull.

    host: its number; target: a tag or digest; most: the bytes of a blob, or the most of a manifest; begin:
    the first byte of a blob that is wanted.
    """

    host: int
    target: str
    most: int
    begin: int
    is_blob: bool

    def pack(self) -> bytes:
        """As bytes."""
        out = FieldWriter()
        for number in (self.host, self.most, self.begin, self.is_blob):
            out.number(number)
        out.text(self.target)
        return out.done()


def unpack_question(data: bytes) -> Question:
    """The inverse of Question.pack()."""
    fields = FieldReader(data)
    host, most, begin, is_blob = (fields.number() for _ in range(4))
    return Question(host, fields.text(), most, begin, bool(is_blob))


class Ending(NamedTuple):
    """How a whole answer ended: its media type, and what the worker states of it (see claims.borne_out())."""

    media_type: str = ""
    claims: bytes = b""


def send_end(out: socket.socket, ending: Ending) -> None:
    """Tell that the answer is whole; raises BrokenPipeError when nobody wants to know any more."""
    media_type = ending.media_type.encode(errors="replace")[:_MAX_TYPE]
    out.send(bytes([_END]) + FieldWriter().data(media_type).data(ending.claims).done())


def send_fault(out: socket.socket, fault: faults.Fault) -> None:
    """Tell of a fault; one of an unknown class goes as its nearest known one."""
    codes = {kind: number for number, kind in enumerate(_CODES)}
    code = next((codes[kind] for kind in type(fault).__mro__ if kind in codes), codes[faults.Broken])
    after = fault.after if isinstance(fault, errors.Interrupted) else None
    fields = FieldWriter()
    fields.number(code)
    fields.number(0 if after is None else 1 + min(math.ceil(after * 1000), 1 << 48))
    fields.number(isinstance(fault, errors.Busy) and fault.overloaded)
    for text in (fault.operation, fault.subject, fault.cause, fault.hint):
        fields.text(text.encode(errors="replace").decode()[:_MAX_TEXT])
    out.send(bytes([_FAULT]) + fields.done())


def outcome(untrusted: socket.socket) -> Ending:
    """How an answer ended.

    Raises the worker's fault, Malformed, and EOFError if the worker has ended without a word.
    """
    message = untrusted.recv(_MAX_OUTCOME)
    if not message:
        raise EOFError
    kind, data = message[0], message[1:]
    if kind == _FAULT:
        raise fault_of(data)
    if kind != _END:
        raise Malformed(f"an outcome of kind {kind}")
    fields = FieldReader(data)
    media_type, claims = fields.data(_MAX_TYPE).decode(errors="replace"), fields.data(MAX_CLAIMS)
    fields.end()
    return Ending(media_type if media_type.isprintable() else "", claims)


def fault_of(untrusted: bytes) -> faults.Fault:
    """The fault that a frame tells of; raises Malformed."""
    fields = FieldReader(untrusted)
    code, after, overloaded = fields.number(), fields.number(), fields.number()
    operation, subject, cause, hint = (fields.text(_MAX_TEXT) for _ in range(4))
    fields.end()
    if code >= len(_CODES) or after > 1 << 49:
        raise Malformed(f"a fault of class {code}")
    kind = _CODES[code]
    seconds = (after - 1) / 1000 if after else None
    if issubclass(kind, errors.Busy):
        return kind(operation, subject, cause, hint, seconds, bool(overloaded))
    if issubclass(kind, errors.Interrupted):
        return kind(operation, subject, cause, hint, seconds)
    return kind(operation, subject, cause, hint)
