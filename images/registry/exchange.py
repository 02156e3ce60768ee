"""Messages between the daemon and the worker that talks to a pull's registries.

The daemon sends requests, each with two sockets: a stream for the document's bytes, and a socket for a single
message, the outcome, available after the stream ends. All output of the worker is untrusted.
"""

from __future__ import annotations

import math
import socket
from typing import NamedTuple

from daemonkit import faults
from images import image_errors
from images.bounds.fields import FieldReader, FieldWriter, Malformed
from images.registry.claims import MAX_CLAIMS_BYTES

MAX_QUESTION_BYTES = 4096
_END, _FAULT = 1, 2
_MAX_TEXT, _MAX_TYPE = 3000, 255
# A fault's four texts, or claims.
_MAX_OUTCOME_BYTES = 64 << 10
_CODES: tuple[type[faults.Fault], ...] = (
    faults.Broken,
    faults.Denied,
    faults.Exhausted,
    faults.Invalid,
    faults.Missing,
    faults.Refused,
    faults.TooLate,
    faults.Unreachable,
    image_errors.Busy,
    image_errors.Corrupt,
    image_errors.Interrupted,
    image_errors.Misdelivered,
    image_errors.NoRanges,
    image_errors.Stalled,
    image_errors.Unconnected,
)


class Question(NamedTuple):
    """A question to one host of a pull.

    host: index of the host; target: a tag or digest; most: size of a blob, or size limit of a manifest;
    begin: the first byte to send of a blob.
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
    """The end of a complete answer: media type, and the worker's claims (see claims.borne_out())."""

    media_type: str = ""
    claims: bytes = b""


def send_end(out: socket.socket, ending: Ending) -> None:
    """Report a complete answer; raises BrokenPipeError if the daemon has closed the socket."""
    media_type = ending.media_type.encode(errors="replace")[:_MAX_TYPE]
    out.send(bytes([_END]) + FieldWriter().data(media_type).data(ending.claims).done())


def send_fault(out: socket.socket, fault: faults.Fault) -> None:
    """Report a fault; a fault of an unknown class is sent as its nearest known base class."""
    codes = {kind: number for number, kind in enumerate(_CODES)}
    code = next((codes[kind] for kind in type(fault).__mro__ if kind in codes), codes[faults.Broken])
    after = fault.after if isinstance(fault, image_errors.Interrupted) else None
    fields = FieldWriter()
    fields.number(code)
    fields.number(0 if after is None else 1 + min(math.ceil(after * 1000), 1 << 48))
    fields.number(isinstance(fault, image_errors.Busy) and fault.overloaded)
    for text in (fault.operation, fault.subject, fault.cause, fault.hint):
        fields.text(text.encode(errors="replace").decode()[:_MAX_TEXT])
    out.send(bytes([_FAULT]) + fields.done())


def outcome(untrusted: socket.socket) -> Ending:
    """The end of an answer.

    Raises the worker's fault, Malformed, and EOFError if the worker ended without an outcome.
    """
    message = untrusted.recv(_MAX_OUTCOME_BYTES)
    if not message:
        raise EOFError
    kind, data = message[0], message[1:]
    if kind == _FAULT:
        raise fault_of(data)
    if kind != _END:
        raise Malformed(f"an outcome of kind {kind}")
    fields = FieldReader(data)
    media_type, claims = fields.data(_MAX_TYPE).decode(errors="replace"), fields.data(MAX_CLAIMS_BYTES)
    fields.end()
    return Ending(media_type if media_type.isprintable() else "", claims)


def fault_of(untrusted: bytes) -> faults.Fault:
    """The fault in a frame; raises Malformed."""
    fields = FieldReader(untrusted)
    code, after, overloaded = fields.number(), fields.number(), fields.number()
    operation, subject, cause, hint = (fields.text(_MAX_TEXT) for _ in range(4))
    fields.end()
    if code >= len(_CODES) or after > 1 << 49:
        raise Malformed(f"a fault of class {code}")
    kind = _CODES[code]
    seconds = (after - 1) / 1000 if after else None
    if issubclass(kind, image_errors.Busy):
        return kind(operation, subject, cause, hint, seconds, bool(overloaded))
    if issubclass(kind, image_errors.Interrupted):
        return kind(operation, subject, cause, hint, seconds)
    return kind(operation, subject, cause, hint)
